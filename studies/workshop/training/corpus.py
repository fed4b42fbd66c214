"""The corpus of the reference pair: text that every Python installation ships, and arithmetic.

Three kinds: code (standard library sources), prose (the language's help topics and the library's
long docstrings), arithmetic (sums, products and sequences from a seed). Files and topics are
divided by name, so that training never reads a held-out one; `unseen` also drops held-out texts
with a passage that occurs in a training text under another name.
"""

from __future__ import annotations

import ast
import hashlib
import sysconfig
from pathlib import Path

import numpy as np

KINDS = ("code", "prose", "arithmetic")
HELD_OUT_SHARE = 0.06
PASSAGE = 100
"""Length in characters from which a repeated paragraph of prose counts as seen."""


def is_held_out(name: str) -> bool:
    """Return whether a file's texts are kept from training, decided by a hash of its name.

    >>> [name for name in ("abc.py", "bisect.py", "csv.py", "heapq.py") if is_held_out(name)]
    ['abc.py']
    """
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:4], "little") < HELD_OUT_SHARE * 2**32


def texts(kind: str, held_out: bool) -> list[str]:
    """Return all texts of a kind, from the training or from the held-out files."""
    if kind == "arithmetic":
        return _arithmetic(seed=1 if held_out else 0, documents=300 if held_out else 3000)
    library = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for path in sorted(library.rglob("*.py")):
        name = path.relative_to(library).as_posix()
        if name.startswith(("site-packages/", "idlelib/", "lib2to3/tests")) or "/test" in name:
            continue
        source = path.read_text(encoding="utf-8", errors="ignore")
        if name == "pydoc_data/topics.py":
            if kind == "prose":
                found += _topics(source, held_out)
        elif is_held_out(name) == held_out and len(source) > 400:
            found += [source] if kind == "code" else _docstrings(source)
    return found


def unseen(kind: str) -> list[str]:
    """Return the held-out texts without those that training saw in part under another name.

    A help topic can repeat a section of another topic, a docstring can be inherited by copying, and
    two arithmetic sheets can draw the same numbers. Source files are kept unchanged: only licence
    headers and idioms occur in several.
    """
    kept = texts(kind, held_out=True)
    if kind == "code":
        return kept
    trained = texts(kind, held_out=False)
    if kind == "arithmetic":
        return [text for text in kept if text not in set(trained)]
    known = "\n\n".join(trained)
    return [text for text in kept if not any(passage in known for passage in _passages(text))]


def _passages(text: str) -> list[str]:
    """Return the paragraphs that are too long to occur elsewhere by accident."""
    return [paragraph for paragraph in text.split("\n\n") if len(paragraph) >= PASSAGE]


def _topics(source: str, held_out: bool) -> list[str]:
    """Split the file of help topics by topic."""
    tree = ast.parse(source)
    table = next(node.value for node in tree.body if isinstance(node, ast.Assign))
    pairs: dict[str, str] = ast.literal_eval(table)
    return [text for name, text in pairs.items() if is_held_out(f"topic:{name}") == held_out]


def _docstrings(source: str) -> list[str]:
    """Return docstrings of at least 200 characters."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return []
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, nodes)]
    return [text for text in found if text and len(text) >= 200]


def _arithmetic(seed: int, documents: int) -> list[str]:
    """Generate sheets of exercises; sheets of two seeds can coincide (see `unseen`).

    >>> _arithmetic(0, 2) == _arithmetic(0, 2), _arithmetic(0, 2) == _arithmetic(1, 2)
    (True, False)
    """
    rng = np.random.default_rng([7, seed])
    return [_sheet(rng) for _ in range(documents)]


def _sheet(rng: np.random.Generator) -> str:
    """Generate one sheet in one of four forms: sums, table, sequence, differences with sums."""
    form = int(rng.integers(4))
    if form == 0:
        a, b = (int(x) for x in rng.integers(2, 100, 2))
        return "".join(f"{a + i} + {b} = {a + i + b}\n" for i in range(24))
    if form == 1:
        a = int(rng.integers(2, 30))
        return f"Table of {a}:\n" + "".join(f"{i} x {a} = {i * a}\n" for i in range(1, 25))
    if form == 2:
        start, step = (int(x) for x in rng.integers(1, 40, 2))
        return f"Count by {step}: " + ", ".join(str(start + i * step) for i in range(60)) + ".\n"
    rows = []
    for _ in range(24):
        a, b = sorted((int(x) for x in rng.integers(1, 100, 2)), reverse=True)
        rows.append(f"{a} - {b} = {a - b}, {a} + {b} = {a + b}\n")
    return "".join(rows)
