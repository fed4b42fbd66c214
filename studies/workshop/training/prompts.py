"""Cuts the prompts that ship with the reference pair: ``prompts.json``, and more of them in
``validation_prompts.json``.

    python -m treepipe.studies.workshop.training.prompts --out executor/reference

All come from held-out texts. Calibration and held-out prompts come from different texts, and no
prompt occurs word for word in the training texts.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from treepipe.studies.workshop.training.corpus import KINDS, texts, unseen

SEED = 20261121
COUNTS = {"calibration": 40, "heldout": 20}
"""Prompts per kind. The share of accepted tokens has a standard deviation of 0.16 over prompts, so
30 calibration prompts would determine it to 0.03 only, 120 to 0.015."""
VALIDATION_COUNTS = {
    "code": {"calibration": 160, "heldout": 100},
    "prose": {"calibration": 64, "heldout": 27},
}
"""Prompts per kind for the validation's standard grid, which decodes few tokens of many prompts, as
prompts differ more than the places of a text. The held-out texts contain no more prose."""
SHORT = (24, 64)
LONG = (66, 90)
LONG_EVERY = 5
"""Number of prompts of which one is longer than 64 tokens."""
HEAD = 24
"""Length of the beginning by which two prompts of a kind must differ, in characters."""

STARTS = {
    "code": re.compile(r"^(?= *(?:async def|def|class|import|from|for|if|with|try)\b)", re.M),
    "prose": re.compile(r"(?:\A|(?<=\n\n))(?=[A-Z][a-z]* )"),
    "arithmetic": re.compile(r"^(?=\d+ \+|Count)", re.M),
}
"""Patterns of places where a prompt of a kind may begin.

Arithmetic prompts begin at sums that count up and at sequences: after a row of random numbers the
most probable token is the end of the text, which would leave nothing to generate.
"""


def main() -> None:
    """Cut the prompts with an existing pair's tokenizer."""
    from tokenizers import Tokenizer

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of target and draft")
    out: Path = parser.parse_args().out
    write(Tokenizer.from_file(str(out / "target" / "tokenizer.json")), out)


def write(tokenizer: Any, folder: Path) -> None:
    """Write the prompts by kind and then by use, each on a line of its file."""
    usual = dict.fromkeys(KINDS, COUNTS)
    for name, counts in (("prompts", usual), ("validation_prompts", VALIDATION_COUNTS)):
        prompts = {kind: cut(tokenizer, kind, each) for kind, each in counts.items()}
        text = json.dumps(prompts, indent=1) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def cut(tokenizer: Any, kind: str, counts: Mapping[str, int]) -> dict[str, list[str]]:
    """Cut the prompts of a kind, by use; deterministic, and larger counts keep the first prompts.

    Every third text is held out from calibration, too, so the two uses share none.
    """
    sources = unseen(kind)
    trained = "\n".join(texts(kind, held_out=False))
    shares = {"calibration": sources[1::3] + sources[2::3], "heldout": sources[::3]}
    found = {}
    for number, (use, share) in enumerate(shares.items()):
        rng = np.random.default_rng([SEED, KINDS.index(kind), number])
        found[use] = _cut_share(tokenizer, kind, share, trained, counts[use], rng)
    return found


def _cut_share(
    tokenizer: Any,
    kind: str,
    sources: list[str],
    trained: str,
    count: int,
    rng: np.random.Generator,
) -> list[str]:
    """Take one prompt of each text, in a drawn order and repeatedly, until there are enough."""
    order = rng.permutation(len(sources))
    found: list[str] = []
    for turn in range(1000 * count):
        length = LONG if len(found) % LONG_EVERY == LONG_EVERY - 1 else SHORT
        text = sources[int(order[turn % len(order)])]
        prompt = _piece(tokenizer, text, STARTS[kind], length, rng)
        if prompt is None or prompt in trained:
            continue
        if not any(prompt[:HEAD] == other[:HEAD] for other in found):
            found.append(prompt)
            if len(found) == count:
                return found
    raise ValueError(f"the held-out texts of kind {kind} give fewer than {count} prompts")


def _piece(
    tokenizer: Any,
    text: str,
    starts: re.Pattern[str],
    length: tuple[int, int],
    rng: np.random.Generator,
) -> str | None:
    """Cut a prompt from a drawn start, or return None if the text has none there.

    The prompt is plain ASCII, ends where a token ends, and is followed by at least 32 more tokens.
    """
    places = [match.start() for match in starts.finditer(text)]
    if not places:
        return None
    first = places[int(rng.integers(len(places)))]
    size = int(rng.integers(length[0], length[1] + 1))
    ids = tokenizer.encode(text[first : first + 12 * size]).ids
    if len(ids) < size + 32:
        return None
    prompt = str(tokenizer.decode(ids[:size]))
    if not prompt.isascii() or tokenizer.encode(prompt).ids != ids[:size]:
        return None
    return prompt


if __name__ == "__main__":
    main()
