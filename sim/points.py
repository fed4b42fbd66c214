"""Many simulated points of a study: in parallel on all cores, and cached between calls.

A point is a scenario: its result is cached by the scenario's content, the files it names and the
simulator's own sources.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import pickle
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import ceil
from pathlib import Path
from time import process_time
from typing import Any

from joblib import Memory, delayed  # type: ignore[import-untyped]

from treepipe.files.outputs import cache_folder
from treepipe.files.toml_file import texts_in
from treepipe.profiles.library import LIBRARY
from treepipe.results.critical_path import CriticalPath
from treepipe.results.estimates import critical_path, observe
from treepipe.results.metrics import METRICS
from treepipe.results.statistics import Interval
from treepipe.results.trace import Trace, steady
from treepipe.scenario.scale import Estimated
from treepipe.scenario.scenario import Scenario
from treepipe.sim.alike import FEWEST
from treepipe.sim.engine import abandon, processes, run_jobs, start
from treepipe.sim.predict import alike, predict, predict_alike

ALONE_S = 0.5
"""Seconds of this process's own work, in all, before it starts others, which takes a second."""
STARTING_S = 1.0
"""The same while others start; they are started at once if the other jobs seem to take longer."""
ROOMS = ("core", "files", "physics", "scenario", "results", "sim")
"""Rooms whose sources change an outcome; ``profiles`` does, too."""
PACKAGE = Path(__file__).parents[1]
"""Folder of all sources; the root folders are linked into it."""


@dataclass(frozen=True, slots=True)
class Point:
    """A scenario to simulate.

    Attributes:
        steady: only the part of each run in which all pipelines are at work counts (``steady``).
        paths: whether the outcome has the critical path.
    """

    label: str
    scenario: Scenario
    steady: bool = False
    paths: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """The prediction at a point: metrics and utilization by name, and the warnings.

    Attributes:
        observations: values of each metric, one per run (or batch of a single run), to compare
            points in pairs.
        path: split of a token's time along the critical path, on request.
        common: the observations' common share of the recorded texts' chance (``Estimates.common``).
        estimates: relative uncertainty of the inputs that are estimates.
        exact: nothing in the runs is drawn at random.
    """

    metrics: Mapping[str, Interval]
    utilization: Mapping[str, Interval]
    warnings: tuple[str, ...] = ()
    observations: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    path: CriticalPath | None = None
    common: float = 0.0
    estimates: Mapping[Estimated, float] = field(default_factory=dict)
    exact: bool = False


@dataclass(slots=True)
class _Alone:
    """Processor time (s) that this process has spent itself."""

    spent_s: float = 0.0

    def run_jobs(self, job: Any) -> Any:
        begun, (work, args, rest) = process_time(), job
        outcome = work(*args, **rest)
        self.spent_s += process_time() - begun
        return outcome


_alone = _Alone()


def simulate_points(
    points: Sequence[Point], progress: Callable[[str, int], None], title: str = "simulating"
) -> dict[str, Outcome]:
    """Simulate points; return the outcomes by label, in the points' order.

    Raises:
        UserError: a scenario is wrong.
        RunError: a simulation came to a standstill.
    """
    progress(title, len(points))
    found = {}
    for label, outcome in outcomes_of(points):
        found[label] = outcome
        progress("", 1)
    return found


def outcomes_of(points: Sequence[Point]) -> Iterator[tuple[str, Outcome]]:
    """Yield each point's label and outcome, in the points' order, as soon as it is known; raises as
    ``simulate_points``."""
    memory = Memory(cache_folder(), verbose=0)
    remembered, together = memory.cache(_simulate), memory.cache(_simulate_alike)
    groups = _groups(points)
    jobs = [
        delayed(remembered)(*_inputs(points[group[0]]))
        if len(group) == 1
        else delayed(together)(tuple(_inputs(points[number]) for number in group))
        for group in groups
    ]
    known, following = dict[int, Outcome](), 0
    for group, outcomes in zip(groups, _begun_here(jobs), strict=True):
        known.update(zip(group, pickle.loads(outcomes), strict=True))
        while following in known:
            yield points[following].label, known.pop(following)
            following += 1


def _groups(points: Sequence[Point]) -> list[list[int]]:
    """Group points, by their numbers, that are simulated together: none has more than the share of
    a process."""
    plain = [number for number, point in enumerate(points) if not point.paths]
    most = max(FEWEST, ceil(len(plain) / processes()))
    groups = [
        [plain[n] for n in group[first : first + most]]
        for group in alike([points[n].scenario for n in plain])
        for first in range(0, len(group), most)
    ]
    alone = [[number] for number, point in enumerate(points) if point.paths]
    return sorted([*groups, *alone])


def _inputs(point: Point) -> tuple[str, str, Path, bool, bool]:
    """Return the arguments of ``_simulate``."""
    scenario = point.scenario
    # Only given keys are passed on, as the simulator warns of those without effect.
    given, base = scenario.model_dump_json(exclude_unset=True), scenario.path.parent
    files = fingerprint(scenario.model_dump(exclude_unset=True), base)
    return given, files, scenario.path, point.steady, point.paths


def _begun_here(jobs: Sequence[Any]) -> Iterator[Any]:
    """Run jobs in their order: here for ``ALONE_S``, or while the engine starts if the rest takes
    much longer than that; the rest on the engine."""
    waiting, until_s = deque(jobs), ALONE_S
    started: Iterator[Any] | None = None
    try:
        while waiting and _alone.spent_s < until_s:
            begun_s = _alone.spent_s
            yield _alone.run_jobs(waiting.popleft())
            if started is None and (_alone.spent_s - begun_s) * len(waiting) > STARTING_S:
                started, until_s = start(delayed(_ready)()), STARTING_S
        deque(started or (), maxlen=0)
    finally:
        abandon(started or iter(()))
    if waiting:
        yield from run_jobs(waiting)


@contextlib.contextmanager
def started() -> Iterator[None]:
    """Start the engine's processes beside what is done within the context, for the points that
    come behind it."""
    starting = start(delayed(_ready)())
    try:
        yield
        deque(starting, maxlen=0)
        _alone.spent_s = max(_alone.spent_s, STARTING_S)
    finally:
        abandon(starting)


def _ready() -> None:
    """Do nothing: a process that does it has imported this module."""


def _simulate(content: str, fingerprint: str, path: Path, cut: bool, paths: bool) -> bytes:
    """Simulate a point: read ``content`` as the file at ``path``, and ``cut`` its runs to the
    steady part. The cache's key includes ``fingerprint``, which covers all other inputs. The
    outcome is in bytes, since the cache writes objects a hundred times as slowly."""
    scenario = Scenario.of(json.loads(content), path)
    return pickle.dumps([_outcome(scenario, predict(scenario, paths=paths), cut, paths)])


def _simulate_alike(inputs: Sequence[tuple[str, str, Path, bool, bool]]) -> bytes:
    """Simulate points in lanes; ``inputs`` are those of ``_simulate``."""
    scenarios = [Scenario.of(json.loads(content), path) for content, _, path, *_ in inputs]
    outcomes = []
    for scenario, found, (*_, cut, paths) in zip(
        scenarios, predict_alike(scenarios), inputs, strict=True
    ):
        if isinstance(found, Exception):
            raise found
        outcomes.append(_outcome(scenario, found, cut, paths))
    return pickle.dumps(outcomes)


def _outcome(scenario: Scenario, traces: list[Trace], cut: bool, paths: bool) -> Outcome:
    if cut:
        traces = [steady(trace) for trace in traces]
    estimates = observe(traces, scenario.workload.warmup_requests)
    warnings = {*(w for trace in traces for w in trace.warnings), *estimates.warnings}
    observations = {name: tuple(values.tolist()) for name, values in estimates.metrics.items()}
    found = critical_path(traces, estimates.warmup) if paths else None
    told = tuple(sorted(warnings))
    uncertain = {of: share for trace in traces for of, share in trace.estimates.items()}
    common, exact = estimates.common, estimates.exact
    return Outcome(*estimates.intervals, told, observations, found, common, uncertain, exact)


def fingerprint(content: Any, base: Path, rooms: tuple[str, ...] = ROOMS) -> str:
    """Compute a fingerprint of the sources of ``rooms``, the profile library, and the files that
    the content of a file in the folder ``base`` names."""
    digest = hashlib.sha256(_sources(rooms).encode())
    for file in _named_files(content, base):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _named_files(content: Any, base: Path) -> Iterator[Path]:
    """Yield every text in a scenario that is the path of a file (or of a model's folder)."""
    for text in filter(None, texts_in(content)):
        for path in (base / text, base / text / "config.json"):
            with contextlib.suppress(OSError, ValueError):  # too long for a name, or not readable
                if path.is_file():
                    yield path


@lru_cache
def _sources(rooms: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    files = [file for room in rooms for file in (PACKAGE / room).glob("**/*.py")]
    files += [*LIBRARY.glob("*.py"), *LIBRARY.glob("**/*.toml")]
    for file in sorted(files):
        digest.update(file.read_bytes())
    digest.update(",".join(METRICS).encode())  # installed packages may have some of their own
    return digest.hexdigest()
