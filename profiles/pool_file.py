"""The file of an acceptance pool (``docs/files.md``): read, checked and written."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from treepipe.files.outputs import write_file
from treepipe.files.reading import parse_json, read_bytes, reading, unpacked
from treepipe.profiles.hit_ratio import Ranks

SCHEMA = "treepipe.acceptance/1"
Floats = npt.NDArray[np.float64]


class Table(NamedTuple):
    """Log probabilities [positions, candidates], descending, and ranks of the target's tokens.

    A token outside the candidates has their number as its rank. Where candidates are drawn,
    ``log_ratios`` are log(q / p) of the target's tokens; empty: not recorded.
    """

    vectors: Floats
    ranks: Sequence[int]
    log_ratios: Sequence[float] = ()

    def beginning(self, length: int) -> Table:
        return Table(self.vectors[:length], self.ranks[:length], self.log_ratios[:length])

    def content(self) -> dict[str, Any]:
        ratios = {"log_ratios": list(self.log_ratios)} if self.log_ratios else {}
        return {"log_probs": self.vectors.tolist(), "ranks": list(self.ranks), **ratios}


class Prompt(NamedTuple):
    """A recorded text's answers at each position, given that all before the position is verified.

    ``guessed`` holds the answers with the last 1, 2, ... tokens unverified, if that affects the
    draft.
    """

    known: Table
    guessed: Sequence[Table] = ()

    def beginning(self, length: int) -> Prompt:
        return Prompt(
            self.known.beginning(length), tuple(each.beginning(length) for each in self.guessed)
        )

    def content(self) -> dict[str, Any]:
        guessed = [each.content() for each in self.guessed]
        return self.known.content() | ({"guessed": guessed} if guessed else {})


@dataclass(frozen=True)
class Made:
    """A pool's recording settings (``treepipe.scenario.making`` compares them with a scenario).

    Attributes:
        sampling: relevant keys of a scenario's table ``[sampling]``, with their values.
        draft: keys of its draft, including ``source``; empty where a file lacks them.
        prompts: name of the prompts on the command line.
    """

    sampling: dict[str, Any]
    draft: dict[str, Any]
    prompts: str = ""

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> Made:
        """Read the settings from a pool's file; older files have the temperature alone."""
        older = {"temperature": content.get("temperature", 0), "rule": "exact"}
        made = cls(
            dict(content.get("sampling", older)),
            dict(content.get("draft_keys", {})),
            str(content.get("recorded_on", "")),
        )
        for settings in (made.sampling, made.draft):
            for key, value in settings.items():
                parts = value if isinstance(value, list) else [value]
                if not all(type(part) in (str, int, float) for part in parts):
                    raise ValueError(
                        f"keys sampling and draft_keys: {key} = {value!r} is no setting"
                    )
                settings[key] = tuple(value) if parts is value else value
        return made


@dataclass(frozen=True)
class PoolFile:
    """The content of a pool file.

    Attributes:
        candidates: log probabilities per position.
        prompts: recorded texts, with equally many guessed depths each.
        off_path: [n, candidates] log probabilities by steps (1, 2, ...) off the target's text,
            text after text, one beside every second token.
        target, draft: names; empty where a file lacks them.
    """

    candidates: int
    prompts: Sequence[Prompt]
    off_path: Mapping[int, Floats]
    target: str = ""
    draft: str = ""
    made: Made = Made({"temperature": 0, "rule": "exact"}, {})

    @property
    def ranks(self) -> list[int]:
        """Ranks of the target's tokens, text after text, with all tokens before them verified."""
        return [int(rank) for prompt in self.prompts for rank in prompt.known.ranks]

    def beginnings(self, length: int) -> PoolFile:
        """Keep each text's first ``length`` tokens; vectors off the texts stay whole."""
        return replace(self, prompts=[prompt.beginning(length) for prompt in self.prompts])

    def content(self) -> dict[str, Any]:
        """Return the pool as JSON; ``from_content`` reads it back."""
        return {
            "schema": SCHEMA,
            "target": self.target,
            "draft": self.draft,
            "sampling": self.made.sampling,
            "draft_keys": self.made.draft,
            "recorded_on": self.made.prompts,
            "candidates": self.candidates,
            "prompts": [prompt.content() for prompt in self.prompts],
            "off_path": {str(steps): rows.tolist() for steps, rows in self.off_path.items()},
        }

    def save(self, path: Path, asked_by: str) -> None:
        """Write the file whole or not at all; ``asked_by`` is the option that names it."""
        write_file(path, json.dumps(self.content()), asked_by)

    @classmethod
    def load(cls, path: Path) -> PoolFile:
        """Read a file (JSON, or gzipped JSON). Raises ``UserError`` if it is missing or no pool."""
        of_content = TypeError, AttributeError, EOFError, zlib.error
        with reading(path, "is not an acceptance pool", "acceptance pool", of_content):
            raw = read_bytes(path)
            raw = unpacked(raw) if path.suffix == ".gz" else raw
            return cls.from_content(parse_json(raw.decode("utf-8")))

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> PoolFile:
        """Parse a pool. Raises ``ValueError`` or ``KeyError`` naming the key that is wrong."""
        if content.get("schema") != SCHEMA:
            raise ValueError(f"key schema = {content.get('schema')!r}, not {SCHEMA!r}")
        width = int(content["candidates"])
        if width < 1:
            raise ValueError(f"key candidates = {width}: a pool needs at least one")
        prompts = [
            _prompt(entry, f"prompts.{index}", width)
            for index, entry in enumerate(content["prompts"])
        ]
        if not prompts:
            raise ValueError("key prompts is empty")
        if len({len(prompt.guessed) for prompt in prompts}) > 1:
            raise ValueError("key prompts: all need equally many guessed depths")
        off_path = {
            int(steps): _vectors(rows, f"off_path.{steps}", width)
            for steps, rows in content["off_path"].items()
            if rows
        }
        if sorted(off_path) != list(range(1, len(off_path) + 1)) or not off_path:
            raise ValueError("key off_path needs vectors for 1, 2, ... steps without a gap")
        names = str(content.get("target", "")), str(content.get("draft", ""))
        return cls(width, prompts, off_path, *names, Made.from_content(content))


def ranks_of(prompts: Sequence[Prompt]) -> Ranks:
    """Ranks of the target's tokens [1 + guessed depths, positions], text after text."""
    tables = [(prompt.known, *prompt.guessed) for prompt in prompts]
    return np.array([[rank for t in depth for rank in t.ranks] for depth in zip(*tables)])  # noqa: B905


def _prompt(entry: Mapping[str, Any], key: str, width: int) -> Prompt:
    known = _table(entry, key, width)
    guessed = [
        _table(each, f"{key}.guessed.{depth}", width)
        for depth, each in enumerate(entry.get("guessed", ()))
    ]
    if any(len(each.ranks) != len(known.ranks) for each in guessed):
        raise ValueError(f"key {key}.guessed: every depth needs as many positions as the prompt")
    return Prompt(known, guessed)


def _table(entry: Mapping[str, Any], key: str, width: int) -> Table:
    vectors = _vectors(entry["log_probs"], f"{key}.log_probs", width)
    ranks = entry["ranks"]
    if len(ranks) != len(vectors):
        raise ValueError(f"key {key} needs as many ranks as log_probs")
    if not all(isinstance(rank, int) and 0 <= rank <= width for rank in ranks):
        raise ValueError(f"key {key}.ranks: a rank is a whole number from 0 to {width}")
    ratios = [float(each) for each in entry.get("log_ratios", ())]
    if len(ratios) not in (0, len(ranks)) or not np.isfinite(ratios).all():
        raise ValueError(f"key {key}.log_ratios needs as many numbers as ranks, or none at all")
    return Table(vectors, ranks, ratios)


def _vectors(rows: Any, key: str, width: int) -> Floats:
    """Check log probabilities [n, width]."""
    try:
        vectors = np.array(rows, dtype=np.float64)
    except (ValueError, TypeError):
        vectors = np.zeros(0)
    if vectors.ndim != 2 or vectors.shape[1] != width:
        raise ValueError(f"key {key} needs rows of {width} numbers (key candidates)")
    if not np.isfinite(vectors).all() or (vectors > 0).any() or (np.diff(vectors) > 0).any():
        raise ValueError(f"key {key}: log probabilities are finite, at most 0, and descend")
    return vectors
