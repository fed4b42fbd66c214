"""FlowSpec's testbed as scenarios, and the fit to its table: times, depth loss, accuracy.

The testbed has the varied parameters, and assumptions about models and data (FlowSpec, section 4.1
and appendix A.1); docstrings mark as assumed what they leave open. Invariant: the fit uses only
what ``published.toml`` holds, and each parameter has a meaning. The 7B models' times come from the
three rows of Vicuna 7B at temperature 0, the 13B models' from them by the bytes of a pass and from
the naive_pp cells by the arithmetic of unpacking, and each cell's accuracy from its naive_pp
figure: a cell is the time per token of a curve at that accuracy, and a prefill.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from math import log
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import optimize

from treepipe.files.toml_file import read_toml
from treepipe.physics.timing import TimeTable
from treepipe.profiles.library import find_device
from treepipe.profiles.schema import Hardware
from treepipe.progress import Progress
from treepipe.results.metrics import METRIC
from treepipe.scenario.scenario import Scenario
from treepipe.studies.reproduction import device_times, model_profile, simulated

Size: TypeAlias = Literal["7b", "13b"]

SCENARIO = Path(__file__).with_name("flowspec.toml")
NEW_TOKENS = 128
STAGES = 4
DEVICE = "jetson-orin-nano-8gb"
KNOTS = (1, 2, 8, 16, 32, 64, 96, 128)
"""Numbers of tokens at which the roofline's times are sampled."""
SEGMENT, TREE_LAYER = 16, 10
"""Tokens of a usual pass of a stage, and of the draft, to which the time parameters refer."""
MOST_OPERATIONS = 32
"""Bound of the operations that unpacking a 4-bit weight takes besides its bytes: four comparisons,
their bits and branches, a scale, a conversion, addresses (bitsandbytes)."""

_TABLES = read_toml(Path(__file__).with_name("flowspec-tables.toml"))
MODELS: Sequence[str] = _TABLES["models"]
TEMPLATE_TOKENS: Mapping[str, int] = _TABLES["template_tokens"]
PROMPT_TOKENS: Mapping[str, int] = _TABLES["prompt_tokens"]
"""Assumed lengths of system prompts by family, and of the datasets' tasks."""
METHODS: Mapping[str, Mapping[str, Any]] = _TABLES["methods"]
"""Keys of the schedule by method."""
TEMPERATURES = ("t0", "t1")
"""Sampling temperatures, as keys name them."""


class Times(NamedTuple):
    """The fitted service times, in milliseconds.

    Attributes:
        stage_ms: a pass of a stage over a segment of 16 tokens.
        sync_ms: cost of a step besides computing and sending: the decision, its broadcast to
            all devices, and their waiting for it.
        draft_ms: a draft pass over a tree layer of 10 nodes.
    """

    stage_ms: float
    sync_ms: float
    draft_ms: float


@dataclass(frozen=True, slots=True)
class Case:
    """A method on the testbed.

    Attributes:
        depth_loss: the draft's loss of accuracy beyond recorded depths (``docs/scenario.md``).
        extra: further changes of the scenario.
        one_row: 4-bit weights are multiplied as they are in a pass over one row, by bitsandbytes'
            kernel of 0.40 and later; else they are unpacked for it, too.
    """

    method: str
    size: Size
    times: Times
    depth_loss: float
    requests: int
    extra: Mapping[str, Any] = field(default_factory=dict)
    one_row: bool = True

    def scenario(self, top1: float) -> Scenario:
        """Return the scenario in which the draft's first candidate is right at a share ``top1``."""
        changes = {
            **{f"schedule.{key}": value for key, value in METHODS[self.method].items()},
            "target.profile": f"vicuna-{self.size}",
            **self._devices(),
            "acceptance.hit_ratio": {1: top1},
            "acceptance.depth_loss": self.depth_loss,
            "workload.requests": self.requests,
        }
        return Scenario.load(SCENARIO).with_(**{**changes, **self.extra})

    def _devices(self) -> dict[str, Any]:
        """Return the devices' keys. In a pipeline in lock-step a step is synchronised whether or
        not a segment comes back: then that is part of all stages' passes."""
        sync_ms = self.times.sync_ms if self.method == "pipedec" else 0.0
        stage_ms = _scaled(_stage(self.size), SEGMENT, self.times.stage_ms)
        if not self.one_row:
            stage_ms[1] = stage_ms[2]
        evaluate = device_times(DEVICE).evaluation(model_profile(f"vicuna-{self.size}"))
        return {
            "pipelines.0.stages.0.device": {
                "stage_ms": {n: ms + sync_ms for n, ms in stage_ms.items()}
            },
            "drafts.0.device": {
                "draft_ms": _scaled(_draft(self.size), TREE_LAYER, self.times.draft_ms),
                "evaluate_ms": {n: evaluate(n) for n in KNOTS},
                "decide_ms": self.times.sync_ms - sync_ms,
            },
        }


def prefill(size: Size, times: Times, prompt_tokens: int) -> Scenario:
    """Return one request that ends soon after its prompt; acceptance has no effect."""
    extra = {
        "workload.prompt_tokens": prompt_tokens,
        "workload.new_tokens": 2,
        "acceptance": {"source": "bernoulli", "beta": 0.5},
    }
    return Case("naive_pp", size, times, 0.0, 1, extra).scenario(0.7)


def size_of(model: str) -> Size:
    return "13b" if "13b" in model else "7b"


def prompt_tokens(model: str, dataset: str) -> int:
    """Return the assumed length of a dataset's prompts in a model's template."""
    return PROMPT_TOKENS[dataset] + TEMPLATE_TOKENS[model.split("-")[0]]


def roofline_times() -> Times:
    """Return the 7B models' times by the roofline alone."""
    return Times(_stage("7b")(SEGMENT), 0.0, _draft("7b")(TREE_LAYER))


def larger(times: Times, unpack_ms: float) -> Times:
    """Scale the 7B models' times to the 13B models by the bytes that a pass moves.

    The target's layers are unpacked at every pass, by the library's law of such kernels, which
    takes ``unpack_ms`` besides; the EAGLE head is not quantized, so that it is slower by its size
    alone; a step's synchronisation does not depend on the model.
    """
    stages = _stage("13b")(SEGMENT) / _stage("7b")(SEGMENT)
    heads = _draft("13b")(TREE_LAYER) / _draft("7b")(TREE_LAYER)
    return Times(times.stage_ms * stages + unpack_ms, times.sync_ms, times.draft_ms * heads)


def operations(unpack_ms: float) -> float:
    """Return the operations per weight that take a stage ``unpack_ms``, at the board's peak rate of
    float32 (a multiplication with an addition is one)."""
    hardware, shape = find_device(DEVICE, __name__), model_profile("vicuna-13b").shape
    assert isinstance(hardware, Hardware)
    assert hardware.roofline is not None
    rate = hardware.roofline.tflops["float32"] * 1e9 / 2  # per millisecond
    return unpack_ms * rate / (shape.layers // STAGES * shape.layer_parameters)


def _scaled(curve: TimeTable, tokens: int, ms: float) -> dict[int, float]:
    """Scale the curve to ``ms`` milliseconds at ``tokens`` tokens."""
    return {n: curve(n) * ms / curve(tokens) for n in KNOTS}


@cache
def _stage(size: Size) -> TimeTable:
    """Return the profile's times, of the 13B models in 4 bits by the law of the kernels."""
    model, kernels = model_profile(f"vicuna-{size}"), dict[str, str]()
    if size == "13b":
        model, kernels = replace(model, dtype="int4"), {"kernels": "dequantized"}
    return device_times(DEVICE, **kernels).stage(model, model.shape.layers // STAGES)


@cache
def _draft(size: Size) -> TimeTable:
    target = model_profile(f"vicuna-{size}").shape
    return device_times(DEVICE).draft(model_profile(f"eagle-vicuna-{size}"), target)


Floats: TypeAlias = npt.NDArray[np.float64]
Rows: TypeAlias = Mapping[str, Mapping[str, float]]
"""Tokens per second by method, by dataset."""
Cells: TypeAlias = dict[tuple[str, str], float]
"""Figures by method and dataset."""

TOP1 = (0.15, 0.3, 0.45, 0.6, 0.75, 0.87, 0.95)
"""Simulated accuracies, up to the limits of tilting the recorded pool."""
BEYOND = 0.5
"""Range of accuracy by which curves are extrapolated."""
STEP = 1.25
"""Factor on one time parameter, for the derivative with respect to it."""
BASE, LOWEST, HIGHEST = Times(80.0, 20.0, 15.0), Times(30.0, 0.0, 5.0), Times(200.0, 100.0, 60.0)
DESIGNS = [BASE] + [BASE._replace(**{k: ms * STEP}) for k, ms in BASE._asdict().items()]
"""``BASE``, and each time parameter multiplied by ``STEP`` on its own."""
FITTED_MODEL = "vicuna-7b-v1.3"
ROWS = ("naive_pp", "pipedec", "flowspec")
LOSSES = (0.0, 0.03, 0.1)
"""Loss of accuracy per unverified token beyond recorded depths; the fit takes the best one."""


def tokens_per_s(tbt_ms: float, prefill_ms: float) -> float:
    """Return new tokens over wall time with prefill, as the paper counts."""
    return 1e3 * NEW_TOKENS / (prefill_ms + (NEW_TOKENS - 1) * tbt_ms)


def tbt_of(xi: float, prefill_ms: float) -> float:
    """Invert ``tokens_per_s``."""
    return (1e3 * NEW_TOKENS / xi - prefill_ms) / (NEW_TOKENS - 1)


class Curve:
    """Milliseconds between tokens against top-1 accuracy: a parabola through the logarithms.

    Beyond the simulated accuracies it is extrapolated along its tangents, where "accuracy" is only
    a number that all methods share.
    """

    def __init__(self, top1: Sequence[float], tbt_ms: Sequence[float] | Floats) -> None:
        logs = np.log(np.asarray(tbt_ms, float))
        parabola = np.polynomial.Polynomial.fit(np.asarray(top1, float), logs, 2)
        ends = np.array([min(top1), max(top1)])
        fine = np.linspace(ends[0], ends[1], 400)
        tangents = parabola(ends) + np.array([-BEYOND, BEYOND]) * parabola.deriv()(ends)
        self._fine = np.array([ends[0] - BEYOND, *fine, ends[1] + BEYOND])
        self._logs = np.array([tangents[0], *parabola(fine), tangents[1]])

    def __call__(self, top1: float) -> float:
        return float(np.exp(np.interp(top1, self._fine, self._logs)))

    def accuracy(self, tbt_ms: float) -> float:
        """Return the accuracy at which the curve has this time (the time falls with accuracy)."""
        falling = np.minimum.accumulate(self._logs)
        return float(np.interp(-np.log(tbt_ms), -falling, self._fine))

    def outside(self, tbt_ms: float) -> float:
        """Return by how much the time's logarithm lies beyond the simulated range; 0 inside it."""
        slowest, fastest = self._logs[1], self._logs[-2]
        value = float(np.log(tbt_ms))
        return value - float(np.clip(value, fastest, slowest))


def simulate_curves(cases: Mapping[str, Case], say: Progress, title: str) -> dict[str, Floats]:
    """Simulate times between tokens at each accuracy of ``TOP1``, by the cases' labels."""
    scenarios = {
        f"{label} {top1}": case.scenario(top1) for label, case in cases.items() for top1 in TOP1
    }
    found = simulated(scenarios, say, title)
    return {k: np.array([found[f"{k} {x}"].metrics[METRIC].mean for x in TOP1]) for k in cases}


def simulate_prefills(
    size: Size, times: Times, prompts: Sequence[int], say: Progress
) -> dict[int, float]:
    """Simulate milliseconds to the first token by prompt tokens."""
    scenarios = {str(tokens): prefill(size, times, tokens) for tokens in sorted(set(prompts))}
    found = simulated(scenarios, say, f"{size}, prefills")
    return {int(label): o.metrics["time_to_first_token_ms"].mean for label, o in found.items()}


class Linear:
    """Figures that are linear in the service times (while the bottleneck does not change), from
    their values at each of ``DESIGNS``."""

    def __init__(self, values: Sequence[Floats]) -> None:
        self._base, *moved = values
        pairs = zip(moved, BASE, strict=True)
        self._slopes = [(v - self._base) / ((STEP - 1) * t) for v, t in pairs]

    def __call__(self, times: Times) -> Floats:
        total: Floats = self._base.copy()
        for now, then, slope in zip(times, BASE, self._slopes, strict=True):
            total += (now - then) * slope
        return total


class Surrogate:
    """Curves and prefills of the 7B models at any service times, without simulating them.

    The same random texts are simulated at each of ``DESIGNS``; in lock-step schedules their
    outcomes do not depend on the times, so all times are linear in the parameters.

    Args:
        tables: figures by method and depth loss; ``prefills``: by prompt tokens.
    """

    def __init__(
        self, tables: Mapping[tuple[str, float], Linear], prefills: Mapping[int, Linear]
    ) -> None:
        self._tables, self._prefills = tables, prefills

    def curve(self, method: str, times: Times, depth_loss: float) -> Curve:
        key = (method, depth_loss) if method == "pipedec" else (method, 0.0)
        return Curve(TOP1, np.maximum(self._tables[key](times), 1e-3))

    def prefill(self, prompt_tokens: int, times: Times) -> float:
        return float(self._prefills[prompt_tokens](times)[0])

    def cells(self, times: Times, loss: float, naive: float, prompt: int) -> dict[str, float]:
        """Predict tokens per second by method, at the accuracy where naive_pp has ``naive``."""
        prefill = self.prefill(prompt, times)
        curves = {method: self.curve(method, times, loss) for method in ROWS}
        top1 = curves["naive_pp"].accuracy(tbt_of(naive, prefill))
        return {method: tokens_per_s(curve(top1), prefill) for method, curve in curves.items()}

    @classmethod
    def learn(
        cls, losses: Sequence[float], prompts: Sequence[int], requests: int, say: Progress
    ) -> Surrogate:
        """Simulate the surrogate's designs; only PipeDec's trees reach beyond recorded depths."""
        keys = [("naive_pp", 0.0), ("flowspec", 0.0), *(("pipedec", loss) for loss in losses)]
        cases = {
            f"{method} {loss} {number}": Case(method, "7b", times, loss, requests)
            for method, loss in keys
            for number, times in enumerate(DESIGNS)
        }
        found = simulate_curves(cases, say, "curves for the fit")
        tables = {
            (method, loss): Linear([found[f"{method} {loss} {n}"] for n in range(len(DESIGNS))])
            for method, loss in keys
        }
        timed = [simulate_prefills("7b", times, prompts, say) for times in DESIGNS]
        prefills = {n: Linear([np.array([each[n]]) for each in timed]) for n in timed[0]}
        return cls(tables, prefills)


# --- the fit -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fit:
    """Parameters from the rows of one model.

    Attributes:
        errors: predicted over published - 1, by method and dataset, of the fitted cells.
        misfit: half of the minimized sum of squares.
    """

    times: Times
    depth_loss: float
    errors: Cells
    misfit: float


def fits(surrogate: Surrogate, table: Rows, datasets: Sequence[str]) -> list[Fit]:
    """Find the times with the least squared relative errors over these datasets' cells of Table 1,
    for every depth loss; the best one first.

    The draft must also reach every naive_pp figure of the 7B models: distances beyond the
    accuracies that the recorded pool can be tilted to count as errors.
    """
    found = [_fit_times(surrogate, table, datasets, loss) for loss in LOSSES]
    return sorted(found, key=lambda each: each.misfit)


def fitted_rows(table: Rows) -> Rows:
    """Return the fitted rows of Table 1 by method."""
    return {method: table[f"{FITTED_MODEL}/t0/{method}"] for method in ROWS}


def _fit_times(surrogate: Surrogate, table: Rows, datasets: Sequence[str], loss: float) -> Fit:
    rows, keys = fitted_rows(table), list(product(ROWS[1:], datasets))

    def residuals(values: Sequence[float]) -> list[float]:
        times = Times(*values)
        cells = _predicted_cells(surrogate, times, loss, rows["naive_pp"], datasets)
        errors = [float(np.log(cells[m, d] / rows[m][d])) for m, d in keys]
        return errors + _out_of_reach(surrogate, table, times, loss)

    found = optimize.least_squares(
        residuals, BASE, bounds=(LOWEST, HIGHEST), x_scale=BASE, diff_step=1e-3
    )
    errors = dict(zip(keys, np.expm1(found.fun[: len(keys)]).tolist(), strict=True))
    return Fit(Times(*found.x.tolist()), loss, errors, float(found.cost))


def _out_of_reach(surrogate: Surrogate, table: Rows, times: Times, loss: float) -> list[float]:
    """Return the distance of each naive_pp figure of the 7B models beyond the curve's ends."""
    curve = surrogate.curve("naive_pp", times, loss)
    return [curve.outside(tbt_ms) for tbt_ms in _naive_tbts(surrogate, table, times, "7b")]


def _naive_tbts(surrogate: Surrogate, table: Rows, times: Times, size: Size) -> list[float]:
    """Return the time between tokens of all naive_pp cells of the models of a size."""
    return [
        tbt_of(xi, surrogate.prefill(prompt_tokens(model, dataset), times))
        for row, figures in table.items()
        for model, _, method in [row.split("/")]
        if method == "naive_pp" and size_of(model) == size
        for dataset, xi in figures.items()
    ]


def unpacking_ms(surrogate: Surrogate, table: Rows, fit: Fit) -> float:
    """Return what the arithmetic of unpacking adds to a pass of a 13B stage.

    With it the drafts of the 13B models are on average as accurate as those of the 7B models, by
    all naive_pp cells: EAGLE trains the heads of a family's sizes alike. At most
    ``MOST_OPERATIONS``.
    """

    def accuracy(times: Times, size: Size) -> float:
        curve = surrogate.curve("naive_pp", times, fit.depth_loss)
        return fmean(map(curve.accuracy, _naive_tbts(surrogate, table, times, size)))

    wanted, most = accuracy(fit.times, "7b"), MOST_OPERATIONS / operations(1.0)
    nearest = optimize.minimize_scalar(
        lambda ms: (accuracy(larger(fit.times, ms), "13b") - wanted) ** 2,
        bounds=(0.0, most),
        method="bounded",
    )
    return float(nearest.x)


def _predicted_cells(
    surrogate: Surrogate,
    times: Times,
    loss: float,
    naive: Mapping[str, float],
    datasets: Sequence[str],
) -> Cells:
    """Predict tokens per second of ``FITTED_MODEL``, with accuracies from the naive_pp figures."""
    prompts = {dataset: prompt_tokens(FITTED_MODEL, dataset) for dataset in datasets}
    return {
        (method, dataset): value
        for dataset, prompt in prompts.items()
        for method, value in surrogate.cells(times, loss, naive[dataset], prompt).items()
    }


def form_spread(
    surrogate: Surrogate, found: Sequence[Fit], naive: float, prompt: int
) -> dict[str, float]:
    """Return, by method, the largest change of the logarithm of a 7B cell's prediction with another
    depth loss and the times that fit best then (``found``, the best one first)."""
    best, *others = (surrogate.cells(f.times, f.depth_loss, naive, prompt) for f in found)
    return {m: max((abs(log(o[m] / best[m])) for o in others), default=0.0) for m in ROWS}


def leave_one_out(surrogate: Surrogate, table: Rows) -> Cells:
    """Return relative errors of pipedec and flowspec with their dataset left out of the fit."""
    rows, datasets = fitted_rows(table), list(table[f"{FITTED_MODEL}/t0/naive_pp"])
    errors = {}
    for left in datasets:
        fit = fits(surrogate, table, [d for d in datasets if d != left])[0]
        cells = _predicted_cells(surrogate, fit.times, fit.depth_loss, rows["naive_pp"], [left])
        for method in ROWS[1:]:
            errors[method, left] = cells[method, left] / rows[method][left] - 1
    return errors
