"""Other people's clusters, predicted: every public measurement of ``people.toml`` from its inputs.

A row's devices, links and engines are profiles of the library, its acceptance as reported. One
rate of a device alone sets that device's times; nothing else is fitted to a row. Intervals are
of all stated uncertainties together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import exp, log1p
from pathlib import Path
from statistics import NormalDist, median
from tempfile import TemporaryDirectory
from typing import Any, Literal, TypeAlias

import numpy as np

from treepipe.files.toml_file import read_toml, toml_text
from treepipe.profiles.library import find_device, find_link, find_model
from treepipe.profiles.schema import Hardware
from treepipe.profiles.shapes import Shape
from treepipe.progress import Progress
from treepipe.results.sheet import Sheet, columns
from treepipe.results.statistics import Interval
from treepipe.scenario.scale import Estimated, multiplied
from treepipe.scenario.scenario import Scenario
from treepipe.sim.points import Outcome, Point, simulate_points
from treepipe.studies.plots import published_figure
from treepipe.studies.study import Entry, StudyResult, relative_error

NAME = "clusters"
ROWS = Path(__file__).with_name("people.toml")
KNOWN = 0.07
"""Uncertainty of a device's times that one rate sets."""
QUANTILE = NormalDist().inv_cdf(0.975)
ACCEPTANCE = 0.3
"""Uncertainty of the share of misses: acceptance of other texts than were counted."""
STATED_RUNS = 16
"""Runs of a cell as stated: their mean is the prediction. A case has 2."""
ENOUGH = {"memory_mib": 1e6}
"""What was measured did fit."""
Cell: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """The size of the job: cases of uncertain inputs, and new tokens of a request."""

    cases: int = 20
    tokens: int = 32


SHORT = Settings()
FULL = Settings(cases=60, tokens=128)


def cells() -> dict[str, Cell]:
    """Return every cell by its key: a row's inputs, and the cell's."""
    by_key: dict[str, Cell] = {}
    for row in read_toml(ROWS)["row"]:
        for cell in row.get("cells", [{}]):
            whole = {k: v for k, v in {**row, **cell}.items() if k not in ("cells", "name")}
            by_key[f"{row['id']}/{cell['name']}" if cell else row["id"]] = whole
    return by_key


class Clusters:
    """Scenarios of cells. Sizes of models that a row's file has are written into ``folder``."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._folder, self._settings = folder, settings

    def plain(self, cell: Cell) -> Scenario:
        """Return the cell's devices without drafts, over the link that their rate is of."""
        drafts = ("mtp", "gamma", "block", "draft", "verify_ms", "tensor")
        inputs = {k: v for k, v in cell.items() if k not in drafts}
        return self.scenario({**inputs, "link": cell.get("alone_link", cell["link"])})

    def alone(self, cell: Cell, device: str) -> Scenario:
        """Return one device with the model that its rate is of."""
        given = {"model": "alone_model", "gib": "alone_gib", "streams": "alone_streams"}
        other = {k: cell[v] for k, v in given.items() if v in cell}
        inputs = {k: v for k, v in cell.items() if k in ("id", "model", "gib", "dtype", "context")}
        batch = {"batch": other["streams"]} if "streams" in other else {}
        return self.scenario({**inputs, **other, **batch, "devices": [device]})

    def scenario(self, cell: Cell, factors: Mapping[str, float] | None = None) -> Scenario:
        """Make a cell's scenario. Args: ``factors``: on the times of its devices."""
        factors, streams = factors or {}, cell.get("streams", 1)
        depth = cell.get("mtp") or cell.get("gamma") or cell.get("block") or 0
        if depth and "proposed" in cell:
            depth = round(cell["proposed"])
        devices = cell["devices"][:1] * cell.get("count", 0) or cell["devices"]
        content: dict[str, Any] = {
            "name": cell["id"],
            "runs": 2,
            "target": self._model(cell),
            "drafts": [self._draft(cell, factors)],
            "pipelines": [{"stages": self._stages(cell, devices)}],
            "schedule": {"name": "chain", "gamma": depth} if depth else {"name": "pp"},
            "serving": {"batch": cell.get("batch", 1)},
            "workload": {
                "requests": streams,
                "concurrency": streams,
                "prompt_tokens": cell.get("context", 128),
                "new_tokens": self._settings.tokens,
            },
        }
        if len(devices) > 1 or "tensor" in cell:
            content["links"] = {"default": cell["link"]}
        given = {name: factor for name, factor in factors.items() if name in devices}
        if given and "verify_ms" not in cell:
            content["scale"] = {"devices": given}
        if depth:
            reported = (
                {"mean_accepted_length": cell["mean"]}
                if "mean" in cell
                else {"accepted": cell["accepted"], "drafted": 1.0}
            )
            content["acceptance"] = {
                "source": "stated",
                **reported,
                "draft_tokens": depth,
                "uncertainty": cell.get("doubt", ACCEPTANCE),
            }
        return Scenario.of(content, self._folder / "clusters.toml")

    def _stages(self, cell: Cell, devices: Sequence[str]) -> list[dict[str, Any]]:
        layers = cell.get("layers", [None] * len(devices))
        if "tensor" in cell:
            shared = {"profile": devices[0], **ENOUGH}
            return [{"device": shared, "host": "box0", "tensor": cell["tensor"]}]
        if "verify_ms" in cell:
            points = {1: 1e3 / cell["alone"], cell["block"] + 1: cell["verify_ms"]}
            return [{"device": {"stage_ms": points}, "host": "box0"}]
        return [
            {"device": {"profile": name, **ENOUGH}, "host": f"box{n}"}
            | ({} if given is None else {"layers": given})
            for n, (name, given) in enumerate(zip(devices, layers, strict=True))
        ]

    def _draft(self, cell: Cell, factors: Mapping[str, float]) -> dict[str, Any]:
        """Return the draft on the first box: a model, or a head by the time of its pass."""
        if "draft" in cell:
            model = {"profile": cell["draft"], "dtype": cell.get("dtype", "int4")}
            device = {"profile": cell["devices"][0], **ENOUGH}
            return {"device": device, "host": "box0", "model": model}
        took = cell.get("draft_ms", 0.0)
        if "mtp" in cell and "draft_ms" not in cell:
            took = self._head_ms(cell) * factors.get(cell["devices"][0], 1.0)
        drafted = {"device": {"draft_ms": {1: took, 1_000_000: took}}, "host": "box0"}
        if "mtp" in cell:
            return {**drafted, "source": "mtp"}
        return (
            {**drafted, "source": "block", "block": cell["block"] + 1}
            if "block" in cell
            else drafted
        )

    def _head_ms(self, cell: Cell) -> float:
        """Return a pass of the target's head: its weights, and the projection in 8 bits."""
        hardware, section = find_device(cell["devices"][0], NAME), self._model(cell)
        assert isinstance(hardware, Hardware)
        shape, roofline = find_model(cell["model"], NAME), hardware.roofline
        assert roofline is not None
        dtype = section.get("dtype") or find_model(section["profile"], NAME, self._folder).dtype
        moved = shape.mtp_parameters * 0.56 + shape.head_parameters * 1.06
        rate = roofline.memory_gb_s * 1e6 * roofline.reached(dtype)
        return hardware.call_overhead_ms + moved / rate

    def _model(self, cell: Cell) -> dict[str, Any]:
        """Return the target: its profile and type, or a copy with as many bits as its file has."""
        name, gib = cell["model"], cell.get("gib")
        if gib is None:
            return {"profile": name, "dtype": cell.get("dtype", "int4")}
        path = self._folder / f"{name}-{gib}.toml"
        if not path.exists():
            path.write_text(_sized(name, gib))
        return {"profile": f"./{path.name}"}


def _sized(name: str, gib: float) -> str:
    """Return a model's profile with bits such that a token reads what it reads of the file: all but
    the embedding's share."""
    profile = find_model(name, NAME)
    shape = Shape.model_validate(profile.model_dump(include={*Shape.model_fields}))
    embedding = 0 if shape.tied else shape.head_parameters
    read = gib * 2**30 * (1 - embedding / shape.parameters) - 2 * shape.head_parameters
    bits = min(16.0, 8 * read / (shape.layers * shape.read_parameters(None)))
    dtype = "int4" if bits < 6.5 else "int8" if bits < 12 else "float16"
    content = profile.model_dump(exclude_defaults=True, exclude={"caveats"})
    return toml_text({**content, "bits": bits, "dtype": dtype})


# --- prediction ---------------------------------------------------------------------------------


def tokens_s(outcome: Outcome, cell: Cell) -> Interval:
    """Return tokens per second of all users together, without their prompts' time."""
    streams = cell.get("streams", 1)
    ms = outcome.metrics["time_between_tokens_ms"]
    low, high = (None if end is None else 1e3 * streams / end for end in (ms.high, ms.low))
    return Interval(1e3 * streams / ms.mean, low, high)


def predict_cells(
    made: Clusters, known: Mapping[str, Cell], settings: Settings, say: Progress
) -> dict[str, Interval]:
    """Predict cells: each as stated, and in cases of its uncertain inputs."""
    factors = _factors(made, known, say)
    scenarios = {key: made.scenario(cell, factors[key]) for key, cell in known.items()}
    many = [Point(key, each.with_(runs=STATED_RUNS)) for key, each in scenarios.items()]
    stated = simulate_points(many, say, "cells")
    points, doubts = list[Point](), dict[str, dict[Estimated, float]]()
    slower = dict[tuple[str, int], float]()
    for key, outcome in stated.items():
        doubts[key] = {
            of: KNOWN if of.kind == "device" and of.name in factors[key] else share
            for of, share in outcome.estimates.items()
            if of.kind != "model"
        }
        if "verify_ms" in known[key]:  # a written table, to which no profile's factor applies
            doubts[key] = {Estimated("device"): known[key].get("known", KNOWN)} | doubts[key]
        for case, drawn in enumerate(_drawn(doubts[key], settings.cases)):
            slower[key, case] = drawn.pop("devices.", 1.0)
            scale = multiplied(scenarios[key].scale, {k.rstrip("."): f for k, f in drawn.items()})
            points.append(Point(f"{key}:{case}", scenarios[key].with_(scale=scale)))
    outcomes = simulate_points(points, say, f"{len(known)} cells in {settings.cases} cases")
    intervals = {}
    for key, cell in known.items():
        rate, cases = tokens_s(stated[key], cell), range(settings.cases)
        rates = [tokens_s(outcomes[f"{key}:{n}"], cell).mean / slower[key, n] for n in cases]
        half = exp(QUANTILE * float(np.log(rates).std(ddof=1)))
        middle = exp(float(np.log(rates).mean()))
        intervals[key] = Interval(rate.mean, middle / half, middle * half)
    return intervals


def without_themselves(
    made: Clusters, known: Mapping[str, Cell], rates: Mapping[str, Interval], say: Progress
) -> dict[str, Interval]:
    """Predict the cells on which an engine's hop rests with the median hop of the others.

    Milliseconds per token are linear in the hop, so a cell's result tells which it had.
    """
    fitted = {key: cell for key, cell in known.items() if {"fitted", "link"} <= cell.keys()}
    factors, points = _factors(made, fitted, say), list[Point]()
    for key, cell in fitted.items():
        more_ms = find_link(cell["link"], NAME).message_ms + 1
        longer = {**cell, "link": {"profile": cell["link"], "message_ms": more_ms}}
        points += [Point(key, made.scenario(cell, factors[key]))]
        points += [Point(f"{key}+", made.scenario(longer, factors[key]))]
    outcomes = simulate_points(points, say, "hops left out")
    ms = {at: 1e3 / tokens_s(each, fitted[at.rstrip("+")]).mean for at, each in outcomes.items()}
    slopes = {key: ms[f"{key}+"] - ms[key] for key in fitted}
    hops = {key: (1e3 / fitted[key]["tokens_s"] - ms[key]) / slopes[key] for key in fitted}
    without = {}
    for key, cell in fitted.items():
        engine = cell["link"].partition("+")[2]
        others = [h for k, h in hops.items() if k != key and fitted[k]["link"].endswith(engine)]
        without[key] = rates[key].scaled(ms[key] / (ms[key] + slopes[key] * median(others)))
    return without


def _drawn(inputs: Mapping[Estimated, float], cases: int) -> Iterator[dict[str, float]]:
    """Yield the factors of a case by keys of ``[scale]``: lognormal, an input of uncertainty u
    within 1 + u either way with 95 %."""
    table = {"device": "devices", "link": "links", "acceptance": "misses", "rows": "rows"}
    rng = np.random.default_rng(0)
    for row in rng.standard_normal((cases, len(inputs))).tolist():
        yield {
            f"{table[of.kind]}.{of.name}": exp(log1p(share) / QUANTILE * each)
            for (of, share), each in zip(inputs.items(), row, strict=True)
        }


def _factors(
    made: Clusters, known: Mapping[str, Cell], say: Progress
) -> dict[str, dict[str, float]]:
    """Return by cell the factors on the times of devices whose rates alone are stated."""
    rated = dict[tuple[str, str], tuple[Scenario, float]]()
    for key, cell in known.items():
        first, second = cell["devices"][0], cell["devices"][-1]
        streams = cell.get("alone_streams", 1)
        for device, rate in ((first, cell.get("alone")), (second, cell.get("alone_second"))):
            if rate is not None and "verify_ms" not in cell:
                split = cell.get("alone_split", False)
                scenario = made.plain(cell) if split else made.alone(cell, device)
                rated[key, device] = scenario, 1e3 * streams / rate
    points = [Point("/".join(which), each) for which, (each, _) in rated.items()]
    outcomes = simulate_points(points, say, "devices alone")
    factors: dict[str, dict[str, float]] = {key: {} for key in known}
    for (key, device), (_, measured_ms) in rated.items():
        ms = outcomes[f"{key}/{device}"].metrics["time_between_tokens_ms"].mean
        factors[key][device] = measured_ms / ms
    return factors


# --- the page -----------------------------------------------------------------------------------


def study(settings: Settings, say: Progress) -> StudyResult:
    """Predict every cell, and compare those whose result is known."""
    known = cells()
    with TemporaryDirectory() as folder:
        made = Clusters(Path(folder), settings)
        rates = predict_cells(made, known, settings, say)
        crossed = without_themselves(made, known, rates, say)
    entries = {key: _entry(key, cell, rates[key]) for key, cell in known.items()}
    given = {key: each for key, each in entries.items() if each.published is not None}
    result = StudyResult(NAME, [*entries.values()])
    judged = dict[str, Entry]()
    for key in (key for key in given if key in crossed or given[key].role == "predicted"):
        entry = _entry(key, known[key], crossed.get(key, rates[key]))
        judged[key] = replace(entry, role="predicted")
        engine = str(known[key].get("link", "")).partition("+")[2] or "one-box"
        result.left_out.setdefault(f"clusters/{engine}", []).append(judged[key])
    errors = {key: relative_error(each) or 0.0 for key, each in judged.items()}
    worst = max(errors, key=lambda key: abs(errors[key]))
    lessons = {c["id"]: c["taught"] for c in known.values() if "taught" in c}
    result.findings = [
        f"of {len(known)} cells of {len({c['id'] for c in known.values()})} public measurements "
        f"{len(given)} results are known here: {len(judged)}, each left out, are missed by "
        f"{median(map(abs, errors.values())):.0%} in the median and by {errors[worst]:+.0%} at "
        f"worst ({worst})",
        *(f"{of}: {taught}" for of, taught in lessons.items()),
    ]
    result.tables = [_sheet("Predicted against measured", "clusters-given", given, known)]
    result.tables.append(_sheet("All cells", "clusters-all", entries, known))
    panels = {"given results": {"predicted": given}}
    result.figures = {NAME: published_figure("Other people's clusters", "tokens/s", panels)}
    return result


def _entry(key: str, cell: Cell, rate: Interval) -> Entry:
    role: Literal["calibrated", "predicted"] = "calibrated" if "fitted" in cell else "predicted"
    if (over := cell.get("over")) is not None:
        rate = rate.scaled(1 / over)
    ends, unit = (rate.mean, rate.low, rate.high), "tokens/s" if over is None else "times one box"
    return Entry(f"{key}/tokens_s", unit, *ends, published=cell.get("tokens_s"), role=role)


def _sheet(title: str, name: str, entries: Mapping[str, Entry], known: Mapping[str, Cell]) -> Sheet:
    heads = ("predicted (tokens/s)|.4g", "from|.4g", "to|.4g", "measured|.4g", "error|+.0%")
    sheet = Sheet(title, columns("cell", "devices", "model", *heads), name=name)
    for key, entry in entries.items():
        cell = known[key]
        count = cell.get("tensor") or cell.get("count") or len(cell["devices"])
        devices = f"{count} {cell['devices'][0]}"
        figures = entry.predicted, entry.low, entry.high, entry.published, relative_error(entry)
        sheet.add(key, devices, cell["model"], *figures)
    return sheet
