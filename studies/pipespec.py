"""PipeSpec's published timings: two and three models, in turns and ahead of each other.

Three cells and plain decoding are given: they tell what passes take, which guesses are right, and
what a sample takes besides. All other cells are simulated. No given cell has a pass of the 70B
model over several rows: one published figure has. Of three models the first two count as one draft,
whose token takes what theirs takes. Times are in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from treepipe.files.toml_file import read_toml
from treepipe.progress import Progress
from treepipe.results.metrics import METRIC
from treepipe.results.recording import Answer, RecordedRequest, Recording
from treepipe.results.statistics import Interval
from treepipe.scenario.scenario import Scenario
from treepipe.studies import reproduction as made_of
from treepipe.studies.plots import published_figure
from treepipe.studies.study import Entry, StudyResult, relative_error

NAME = "pipespec"
FOLDER = Path(__file__).parent
FACTS = read_toml(FOLDER / f"{NAME}.toml")
GIVEN, PLAIN = FACTS["given"], FACTS["plain"]
"""Given cells; and models alone."""
TURNS, LONG, AHEAD = GIVEN.values()
"""In turns with K = 5 and 20, and ahead of each other with K = 5."""
MOST = 100
"""Rows of a verification pass, at most."""
FOLD = 1.2
"""Factor within which the 70B model's pass over several rows is known: a guess, since its figure is
of "about 8" rows."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The size of the job: samples of each cell, at most those of a given one."""

    samples: int = 10


SHORT = FULL = Settings()


class Cell(NamedTuple):
    """A cell: models by size, the first draft first; tokens of a chain with the target's one
    (the results' ``lookahead``); new tokens of a sample."""

    strategy: str
    models: str
    k: int
    length: int

    @property
    def label(self) -> str:
        return f"{self.strategy}/{self.models}/k={self.k}"


CELLS = [
    Cell(row["strategy"], row["models"], k, round(row["tokens"] / row["samples"]))
    for row in FACTS["cells"]
    for k in row["k"]
]


def start_ms(of: Mapping[str, Any]) -> float:
    """Return what a sample of given results takes besides their passes: its prompt, and waits."""
    passes_ms = sum(count * ms for count, ms in of["passes"])
    return float((of["ms_per_token"] * of["tokens"] - passes_ms) / of["samples"])


def write_texts(samples: int, path: Path) -> float:
    """Write a recording of texts by the counts of the long chain: c tokens accepted are c - 1 right
    guesses and a wrong one, K are all right. Returns the share of right guesses."""
    counts = {int(count): rounds for count, rounds in LONG["accepted"].items()}
    rounds = np.random.default_rng(0).permutation(np.repeat([*counts], [*counts.values()]))
    right = [guess for c in rounds for guess in (*[True] * (c - 1), c == max(counts))]
    length, requests = round(LONG["tokens"] / LONG["samples"]), dict[int, RecordedRequest]()
    for number in range(samples):
        part = enumerate(right[number * length : (number + 1) * length])
        answers = [Answer(1 + at, (), (1 if hit else 2,), (0.0,)) for at, hit in part]
        requests[number + 1] = RecordedRequest(1, (1,) * length, answers)
    Recording(requests).save(path)
    return fmean(right)


class Terms(NamedTuple):
    """What holds for all cells, each from all given ones together: a step of the 1B model; a pass
    of the 8B model in float32, and each row of it; what a sample of both takes besides passes."""

    draft_ms: float
    verify_ms: float
    row_ms: float
    start_ms: float

    @classmethod
    def of_given(cls, left_out: str = "") -> Terms:
        """``left_out``: label of a given cell to do without; without the short chain its pass is
        that of models ahead of each other. The long one alone tells which guesses are right."""
        used = [each for label, each in GIVEN.items() if label != left_out]
        short_ms = TURNS["passes"][1][1] if TURNS in used else AHEAD["verify_ms"]
        row_ms, verify_ms = np.polyfit((5, 20), (short_ms, LONG["passes"][1][1]), 1).tolist()
        draft_ms = fmean(each["passes"][0][1] for each in used)
        return cls(draft_ms, verify_ms, row_ms, fmean(map(start_ms, used)))

    def step_ms(self, model: str) -> float:
        return self.draft_ms if model == "1b" else float(PLAIN[model]["passes"][0][1])

    def target_ms(self, model: str, fold: float) -> dict[int, float]:
        """A target's passes by rows; ``fold``: on what is guessed."""
        if model == "8b":
            return {n: self.verify_ms + n * self.row_ms for n in (1, MOST)}
        one = self.step_ms(model)
        return {1: one, **dict.fromkeys((2, MOST), PLAIN[model]["several_ms"] * fold)}


def scenario(
    cell: Cell, draft_ms: float, target_ms: Mapping[int, float], texts: Path, samples: int
) -> Scenario:
    """Make a cell's scenario, without a sample's start."""
    changes = {
        "runs": 1,
        "drafts": [{"device": {"draft_ms": {1: draft_ms, MOST: draft_ms}}}],
        "pipelines": [{"stages": [{"device": {"stage_ms": target_ms}}]}],
        "links": {"default": {"latency_ms": 0.0}},
        "schedule.gamma": max(1, cell.k),
        "schedule.draft_ahead": cell.strategy == "async-chain",
        "acceptance": {"source": "replay", "file": str(texts)},
        "workload": {"prompt_tokens": 1, "new_tokens": cell.length, "requests": samples},
    }
    return Scenario.load(FOLDER / "scenarios" / f"{NAME}.toml").with_(**changes)


def predict_cells(
    terms: Terms, settings: Settings, say: Progress, cells: Sequence[Cell] = CELLS
) -> dict[Cell, Interval]:
    """Predict ms per token, with the 70B model over all that its pass may take.

    Of three models ahead of each other the first two are a pair by themselves. In turns the first
    one makes K - 1 tokens, and the second verifies them and drafts by itself what is missing.
    """
    with TemporaryDirectory() as folder:
        texts, points = Path(folder) / "texts.json", dict[str, Scenario]()
        right, made = write_texts(settings.samples, texts), (texts, settings.samples)
        first, second = terms.step_ms("1b"), terms.step_ms("8b")
        pair = Cell("async-chain", "1b-8b", 0, 280)
        alone = {"": scenario(pair, first, dict.fromkeys((1, MOST), second), *made)}
        pair_ms = made_of.simulated(alone, say, "1B and 8B")[""].metrics[METRIC].mean
        for cell in cells:
            draft, _, target = cell.models.rpartition("-")
            if draft != "1b-8b":
                draft_ms = terms.step_ms(draft)
            elif cell.strategy == "async-chain":
                draft_ms = pair_ms
            else:
                confirmed = sum(right**n for n in range(1, cell.k - 1))
                draft_ms = first + second * (1 - confirmed / (cell.k - 1))
            for fold in (1.0, 1 / FOLD, FOLD)[: 3 if target == "70b" else 1]:
                target_ms = terms.target_ms(target, fold)
                points[f"{cell.label}:{fold}"] = scenario(cell, draft_ms, target_ms, *made)
        outcomes = made_of.simulated(points, say, "cells")
    values = {}
    for cell in cells:
        besides_ms = start_ms(PLAIN["70b"]) if "70b" in cell.models else terms.start_ms
        all_ms = [outcomes[key] for key in points if key.startswith(f"{cell.label}:")]
        ms = [each.metrics[METRIC] for each in all_ms]
        ends = ms[0].mean, min(v.low or v.mean for v in ms), max(v.high or v.mean for v in ms)
        mean, low, high = (end + (besides_ms - end) / cell.length for end in ends)
        values[cell] = Interval(mean, low, high)
    return values


def study(settings: Settings, say: Progress) -> StudyResult:
    """Predict every cell; intervals have the given cells' errors."""
    terms, entries, groups = Terms.of_given(), {}, dict[str, list[Entry]]()
    for cell in (each for each in CELLS if GIVEN.get(each.label) in (TURNS, AHEAD)):
        others, fact = Terms.of_given(cell.label), GIVEN[cell.label]["ms_per_token"]
        (value,) = predict_cells(others, settings, say, [cell]).values()
        entry = made_of.predicted(f"left-out/{cell.label}", "ms", value, fact)
        groups.setdefault(f"{NAME}/{cell.strategy}", []).append(entry)
    made = made_of.Reproduction(NAME, FOLDER / f"{NAME}.md")
    made.leave_out(groups)
    for cell, value in predict_cells(terms, settings, say).items():
        fact = GIVEN.get(cell.label, {}).get("ms_per_token")
        key = f"{cell.label}/ms_per_token"
        entries[cell] = made_of.predicted(key, "ms", value, fact, fitted=True)
    raw = [e for each in entries.values() if (e := relative_error(each)) is not None]
    spread = made_of.t_spread(raw)
    entries = {cell: made_of.widened(each, spread) for cell, each in entries.items()}
    made.add([*entries.values()], "cells", "All cells")
    given = [entry for entry in entries.values() if entry.published is not None]
    made.show(given, "given", "Given cells")
    fields = {
        **{"terms": terms, "fold": FOLD - 1, "mean": fmean(raw)},
        "several_ms": PLAIN["70b"]["several_ms"],
        "raw": ", ".join(f"{error:+.1%}" for error in raw),
        "alone_ms": {model: start_ms(of) for model, of in PLAIN.items()},
        "starts": ", ".join(f"{start_ms(of):.0f}" for of in GIVEN.values()),
        "start_share": terms.start_ms * TURNS["samples"] / TURNS["tokens"],
        "shared_draft": AHEAD["passes"][0][1] / TURNS["passes"][0][1] - 1,
        "shared_verify": AHEAD["verify_ms"] / TURNS["passes"][1][1] - 1,
    }
    panels = {
        of: {"1B before 8B": {str(c.k): e for c, e in entries.items() if c[:2] == (of, "1b-8b")}}
        for of in ("chain", "async-chain")
    }
    return made.result(fields, published_figure("PipeSpec, by K", "ms per token", panels))
