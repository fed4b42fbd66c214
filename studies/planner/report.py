"""What a search says: a table, the file ``treepipe.plan/1``, and the best plan as a scenario."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from os.path import relpath
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from treepipe.metrics import UNITS
from treepipe.outputs import write_file
from treepipe.profiles.library import is_path
from treepipe.studies.planner.halving import Found, Ranked
from treepipe.toml_file import toml_text

SCHEMA = "treepipe.plan/1"


def plan_content(found: Found) -> dict[str, Any]:
    """Of the JSON file; keys as in ``docs/planning.md``."""
    search = found.file.search
    return {
        "schema": SCHEMA,
        "cluster": found.file.cluster.name,
        "goal": search.goal,
        "unit": UNITS[search.goal],
        "seed": found.file.cluster.seed,
        "rungs": [{"candidates": rung.candidates, "runs": rung.runs} for rung in found.rungs],
        "ranking": [_entry(each, search.goal) for each in found.ranking],
        "refused": [
            {
                "schedule": each.schedule,
                "settings": dict(each.settings),
                "partition": each.partition,
                "reason": each.reason,
            }
            for each in found.refused
        ],
    }


def _entry(ranked: Ranked, goal: str) -> dict[str, Any]:
    candidate, outcome = ranked.candidate, ranked.outcome
    return {
        "schedule": candidate.schedule,
        "settings": dict(candidate.settings),
        "partition": candidate.partition,
        "layers": [list(counts) for counts in candidate.layers],
        goal: outcome.metrics[goal].as_dict(),
        "relative_to_best": None if ranked.gap is None else ranked.gap.as_dict(),
        "indistinguishable": ranked.tied,
        "lossless": candidate.scenario.sampling.lossless,
        "metrics": {name: value.as_dict() for name, value in outcome.metrics.items()},
        "utilization": {name: value.as_dict() for name, value in outcome.utilization.items()},
        "warnings": list(outcome.warnings),
    }


def show_plan(found: Found, out: Path, shown: Console) -> None:
    """Print the ranking, what was refused, and the verdict."""
    goal = found.file.search.goal
    rungs = ", ".join(f"{rung.candidates} on {rung.runs} runs" for rung in found.rungs)
    table = Table(title=f"{found.file.cluster.name}: {goal} (plans simulated: {rungs})")
    for heading in ("", "plan"):
        table.add_column(heading)
    for heading in (UNITS[goal], "95 % interval", "against the best", ""):
        table.add_column(heading, justify="right")
    for rank, each in enumerate(found.ranking, 1):
        value = each.outcome.metrics[goal]
        interval = "" if value.low is None else f"{value.low:.4g} … {value.high:.4g}"
        table.add_row(
            str(rank), each.candidate.label, f"{value.mean:.4g}", interval, *_gap_cells(each)
        )
    shown.print(table)
    for sentence in verdict(found):
        shown.print(sentence, highlight=False)
    for (schedule, reason), count in _refusals(found).items():
        plans = "" if count == 1 else f" ({count} plans)"
        shown.print(f"refused: {schedule}{plans}: {reason}", highlight=False)
    for warning in found.best.outcome.warnings:
        shown.print(f"warning, best plan: {warning}", highlight=False)
    shown.print(f"best plan as a scenario: {out}", highlight=False)


def verdict(found: Found) -> list[str]:
    """Who wins, and who cannot be told from it."""
    best, goal = found.best, found.file.search.goal
    value = best.outcome.metrics[goal]
    sentences = [f"best: {best.candidate.label}, {goal} = {value.mean:.4g} {UNITS[goal]}"]
    if found.best.candidate.partition != "even":
        dealt = " | ".join(" ".join(map(str, counts)) for counts in best.candidate.layers)
        sentences.append(f"its layers per stage: {dealt}")
    tied = [each.candidate.label for each in found.ranking[1:] if each.tied]
    if tied:
        sentences.append(
            f"not distinguishable from it (95 %, on the same texts): {'; '.join(tied)}"
        )
    elif len(found.ranking) > 1:
        sentences.append("all others are worse beyond doubt (95 %, on the same texts)")
    return sentences


def _gap_cells(ranked: Ranked) -> tuple[str, str]:
    if ranked.gap is None:
        return "", "best"
    gap, half = ranked.gap.mean, 0.0
    if ranked.gap.high is not None:
        half = ranked.gap.high - gap
    return f"{gap:+.1%} ± {half:.1%}", "not distinguishable" if ranked.tied else ""


def _refusals(found: Found) -> Mapping[tuple[str, str], int]:
    """How many plans of a schedule were refused for the same reason, in order."""
    return Counter((each.schedule, each.reason) for each in found.refused)


def default_out(cluster: Path) -> Path:
    """Beside the cluster's file, as names in it count from there."""
    return cluster.with_name(f"{cluster.stem}-best.toml")


def write_best(found: Found, out: Path) -> None:
    """The best plan as a scenario file.

    Raises:
        WriteError: it cannot be written there.
    """
    best, search = found.best, found.file.search
    value = best.outcome.metrics[search.goal]
    runs = found.rungs[-1].runs
    comment = [
        f"Found by treepipe plan {found.file.path.name}: the best of {found.rungs[0].candidates} "
        f"plans for {search.goal}.",
        f"Predicted: {value.mean:.4g} {UNITS[search.goal]} (mean of {runs} runs).",
    ]
    name = f"{found.file.cluster.name}: {best.candidate.schedule}"
    text = "".join(f"# {line}\n" for line in comment)
    data = _moved(best.candidate.data, found.file.path.resolve().parent, out.resolve().parent)
    text += toml_text({**data, "name": name})
    write_file(out, text, "--out")


def _moved(value: Any, old: Path, new: Path, key: str = "") -> Any:
    """A file's content; names of files that count from ``old`` are made to count from ``new``."""
    if isinstance(value, Mapping):
        return {name: _moved(each, old, new, name) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_moved(each, old, new, key) for each in value]
    if isinstance(value, str) and (is_path(value) or key == "file") and (old / value).exists():
        return value if Path(value).is_absolute() else relpath(old / value, new)
    return value
