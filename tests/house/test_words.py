"""Guards of the words: what is named exists, and a class name means one thing."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.worlds.sources import nodes

ROOT = Path(__file__).parents[2]
LINKED = ("sim", "executor", "profiles", "studies")
CODE = ("treepipe", *LINKED)
DOCS = ROOT / "docs"
PAGES = (
    *sorted(DOCS.glob("*.md")),
    *sorted((DOCS / "planning").glob("*.md")),
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "tests" / "README.md",
)
ON_PAGES = {"root_branch.py", "head_lookup.py", "prefill_tokens_s.py", "spread.py"}
"""Files that a page has its reader write."""
MEMBERS = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def files(*folders: str) -> list[Path]:
    """Python files below folders of the root; links are followed to where the files are."""
    return sorted({file.resolve() for each in folders for file in (ROOT / each).rglob("*.py")})


@cache
def existing() -> frozenset[str]:
    """All files and folders, by their path from the root and by every end of it."""
    found = {path.relative_to(ROOT) for path in ROOT.iterdir()}
    for top in (*CODE, "tests", "docs"):
        found |= {path.relative_to(ROOT) for path in (ROOT / top).rglob("*")}
    found |= {Path("treepipe", *path.parts) for path in found if path.parts[0] in LINKED}
    return frozenset(
        "/".join(path.parts[first:]) for path in found for first in range(len(path.parts))
    )


def docstrings(file: Path) -> Iterator[tuple[ast.AST, str]]:
    for node in nodes(file):
        if isinstance(node, MEMBERS | ast.Module) and (said := ast.get_docstring(node)):
            yield node, said


def comments(file: Path) -> str:
    """The comments of a file, and strings behind constants, which document them."""
    text = file.read_text(encoding="utf-8")
    strings = re.findall(r'^"""(.*?)"""', text, re.M | re.S)
    return "\n".join([*re.findall(r"# (.*)", text), *strings])


@cache
def said_by(file: Path) -> str:
    """Whatever a file says to its readers."""
    if file.suffix == ".md":
        return file.read_text(encoding="utf-8")
    return "\n".join([*(said for _, said in docstrings(file)), comments(file)])


def test_files_that_are_named_exist() -> None:
    """A path counts from the root or from the folder of the file that names it."""
    stale = []
    for file in (*files(*CODE, "tests"), *PAGES):
        for name in re.findall(r"`([\w./-]+)`", said_by(file)):
            at = re.sub(r"^\.?/|^\.\./|/$", "", name)
            if "NAME" in at or at in ON_PAGES:
                continue
            rooted = at.split("/")[0] in (*CODE, "tests", "docs") and "/" in at
            if (rooted or at.endswith(".py")) and at not in existing():
                stale.append(f"{file.relative_to(ROOT)}: {name}")
    assert not stale


def test_modules_that_are_named_exist() -> None:
    """A name behind the last dot may be of something in the module."""
    stale = []
    for file in (*files(*CODE, "tests"), *PAGES):
        for name in re.findall(r"`treepipe\.([a-z_]+(?:\.\w+)*)", said_by(file)):
            parts = name.split(".")
            paths = [
                "/".join(["treepipe", *parts[:count]]) for count in (len(parts), len(parts) - 1)
            ]
            if not any(path in existing() or f"{path}.py" in existing() for path in paths):
                stale.append(f"{file.relative_to(ROOT)}: treepipe.{name}")
    assert not stale


IDENTIFIER = re.compile(r"(?<![\w…])(?:[a-z]+\w*_\w*[a-z]|[A-Z][a-z]+[A-Z]\w+)")
"""Whatever has an underscore or a second capital; no end of a name ("…_tokens")."""


def test_names_on_pages_are_words_of_the_code() -> None:
    """So a renaming reaches the documents."""
    tables = [file for top in ("studies", "profiles") for file in (ROOT / top).rglob("*.toml")]
    code = [file.read_text(encoding="utf-8") for file in (*files(*CODE, "tests"), *tables)]
    words = {*re.findall(r"\w+", "\n".join(code))} | {Path(path).stem for path in existing()}
    stale = []
    for page in PAGES:
        prose = re.sub(r"```.*?```", "", said_by(page), flags=re.S)
        for quoted in re.findall(r"`([^`\n]+)`", prose):
            names = IDENTIFIER.findall(quoted)
            stale += [f"{page.name}: {name}" for name in names if name not in words]
    assert not stale


def anchors(page: Path) -> set[str]:
    """The names by which a page's headings are linked to."""
    prose = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    headings = [re.sub(r"[^\w\- ]", "", h) for h in re.findall(r"^#+ (.*)", prose, re.M)]
    return {heading.strip().lower().replace(" ", "-") for heading in headings}


def test_links_of_pages_lead_to_pages_and_headings() -> None:
    broken = []
    for page in PAGES:
        for link in re.findall(r"\]\(([^)]+)\)", said_by(page)):
            path, _, heading = link.partition("#")
            target = page.parent / path if path else page
            there = target.exists() and (not heading or heading in anchors(target))
            if not there and not link.startswith("https:"):
                broken.append(f"{page.name}: {link}")
    assert not broken


def test_a_class_name_means_one_thing() -> None:
    """Studies are apart: each names the parts of its own testbed. So are private classes."""
    places = defaultdict(list)
    for file in set(files(*CODE)) - set(files("studies")):
        for node in nodes(file):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(file.relative_to(ROOT)))
    twice = {n: where for n, where in places.items() if len(where) > 1 and not n.startswith("_")}
    assert not twice
