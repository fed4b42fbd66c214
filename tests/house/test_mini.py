"""``docs/mini.py``, which is written from FlowSpec's paper, decides and times as the package does.

Both get the same models, as functions of the text, the same sizes and the same durations, as plain
numbers. They share no code, so that they agree is no agreement by construction.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import inf
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds import toy_lm
from tests.worlds.examples import examples
from tests.worlds.one_request import OneRequest
from tests.worlds.sources import modules
from treepipe.core.decoding.drafting import Growth
from treepipe.core.decoding.tree_schedule import StaticTree, TreeParameters
from treepipe.core.protocol import Drafted, DraftPass, Schedule
from treepipe.core.schedules.flowspec import Continuous, Expansion
from treepipe.core.schedules.pp import Autoregressive
from treepipe.core.scratch import Scratch
from treepipe.physics.timing import DeviceTimes, LinkTimes, TimeTable
from treepipe.scenario.deployment import Deployment, Placed, RequestSpec, Roles, Service, Wiring
from treepipe.scenario.resolve import deploy
from treepipe.scenario.scenario import Scenario
from treepipe.sim.acceptance import AcceptanceSource, PoolSource
from treepipe.sim.acceptance_pool import acceptance_pool
from treepipe.sim.world import simulate

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "mini.py"
RECORDS = json.loads((ROOT / "tests" / "data" / "flowspec_traces.json").read_text())
FLOWSPEC = [record for record in RECORDS if record["method"] != "pipedec"]
METHODS = {"naive": "naive_pp", "pruned": "pruned_pp", "continuous": "flowspec"}
SHIPPED = ("pp", "naive_pp", "pruned_pp", "flowspec")
CLOSE = 1e-9
"""Milliseconds."""

Text = tuple[int, ...]
Target = Callable[[Text], int]
Draft = Callable[[Text], list[tuple[int, float]]]


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mini", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for their annotations
    spec.loader.exec_module(module)
    return module


mini: Any = _load()


@dataclass(frozen=True)
class Case:
    """A request, for both."""

    system: Any
    name: str
    target: Target
    draft: Draft
    prompt: Text
    wanted: int
    stages: int

    @property
    def devices(self) -> list[Any]:
        crew = [
            mini.stage(number, self.system, self.target, self.stages)
            for number in range(1, self.stages + 1)
        ]
        sizes = self.prompt, self.wanted, self.stages
        return [mini.draft_server(self.system, self.draft, *sizes), *crew]

    def schedule(self, session: int = 0, stages: int = 0) -> Schedule:
        """The package's schedule of the same system."""
        ours = self.system
        if self.name == "pp":
            return Autoregressive(session, 64)
        growth = Growth.dynamic(ours.top_k, ours.tree_depth)
        tree = TreeParameters(ours.tree_size, ours.segment_tokens, ours.score_order, growth)
        parts = self.stages + 1
        if self.name == "naive_pp":
            return StaticTree(session, 64, tree, parts)
        expansion = Expansion(
            Growth.dynamic(ours.top_k, ours.expand_depth),
            ours.expand_size,
            score_aware=ours.extend_size > 0,
            score_aware_size=ours.extend_size,
        )
        return Continuous(session, 64, tree, parts, expansion if self.name == "flowspec" else None)


# --- decisions ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Decisions:
    text: Text
    rounds: list[tuple[int, int]]
    drafted: list[int]
    computed: list[list[int]]


def _by_mini(case: Case, seed: int = 0) -> Decisions:
    log = mini.decode(case.devices, seed)
    work = [(device, each) for device, each in log if isinstance(each, mini.Work)]
    first, *steps = [each for _, each in log if isinstance(each, mini.Step)]
    text, rounds, tokens, count = first.tokens, list[tuple[int, int]](), 0, 0
    for step in steps:
        fresh = step.tokens[: case.wanted - len(text)]
        text, tokens, count = text + fresh, tokens + len(fresh), count + 1
        if step.ends_round:
            rounds.append((tokens, count))
            tokens = count = 0
    assert not count
    return Decisions(
        text,
        rounds,
        [each.rows for _, each in work if each.kind == "draft"],
        [
            [each.rows for device, each in work if (device, each.kind) == (stage, "compute")]
            for stage in range(1, case.stages + 1)
        ],
    )


def _by_package(case: Case, target: Callable[..., Any], draft: Callable[..., Any]) -> Decisions:
    """Args: ``target``, ``draft``: the case's models, as logits."""
    world = OneRequest(case.schedule(), case.stages, target, draft)
    text = tuple(world.decode(case.prompt, case.wanted))
    world.drain()
    rounds = [(each.tokens, each.steps) for each in world.schedule.rounds]
    return Decisions(text, rounds, world.draft_calls, world.pipeline.forward_sizes)


def _ranked(logits: Callable[[list[int]], Any]) -> Draft:
    """The draft of these logits: all tokens, most probable first."""

    @cache
    def draft(text: Text) -> list[tuple[int, float]]:
        values = logits([*text])
        logs = values - np.log(np.sum(np.exp(values)))
        return [(token, float(logs[token])) for token in np.argsort(-logs, kind="stable").tolist()]

    return draft


def _greedy(logits: Callable[[list[int]], Any]) -> Target:
    return lambda text: int(np.argmax(logits([*text])))


def _label(record: dict[str, Any]) -> str:
    flags = [name for name in ("score_aware", "score_order") if record[name]]
    return "-".join([record["method"], str(record["prompt"][0]), *flags])


@pytest.mark.parametrize("record", FLOWSPEC, ids=_label)
def test_it_decides_what_the_authors_code_decided(record: dict[str, Any]) -> None:
    """The named differences are those of ``tests/core/test_reference_traces.py``."""
    name = METHODS[record["method"]]
    size, depth = record["expand"]
    system = replace(
        mini.SYSTEMS[name],
        tree_size=record["tree"],
        tree_depth=record["depth"],
        top_k=record["top_k"],
        segment_tokens=record["segment"],
        score_order=record["score_order"],
        expand_size=size if name == "flowspec" else 0,
        expand_depth=depth,
        extend_size=48 if record["score_aware"] else 0,
    )
    noise, committed = record["noise"], sum(tokens for tokens, _ in record["rounds"])
    case = Case(
        system,
        name,
        _greedy(toy_lm.target_logits),
        _ranked(lambda path: toy_lm.draft_logits(path, noise)),
        tuple(record["prompt"]),
        committed + 1,
        record["stages"],
    )
    made = _by_mini(case, seed=committed)
    extra = record["stages"] - (name != "naive_pp")
    assert [[tokens, steps + extra] for tokens, steps in made.rounds] == record["rounds"]
    assert [*made.text[: len(record["tokens"])]] == record["tokens"]
    assert [sizes[1:] for sizes in made.computed] == record["forward_sizes"]
    calls = [size for round_calls in record["draft_calls"] for size in round_calls]
    assert made.drafted == [calls[0] + 1, *calls[1:]]


SIZES = st.integers(1, 20)
FEW = st.integers(0, 3)


@st.composite
def _systems(draw: Any) -> tuple[str, Any]:
    name = draw(st.sampled_from(("pp", "naive_pp", "pruned_pp", "flowspec", "flowspec")))
    if name == "pp":
        return name, mini.SYSTEMS[name]
    system = replace(
        mini.SYSTEMS[name],
        tree_size=draw(SIZES),
        tree_depth=draw(FEW),
        top_k=draw(st.integers(1, 5)),
        segment_tokens=draw(st.integers(1, 8)),
        score_order=draw(st.booleans()),
    )
    if name != "flowspec":
        return name, system
    more = draw(st.sampled_from((0, 1, 2, system.top_k**2, 48)))
    return name, replace(system, expand_size=draw(SIZES), expand_depth=draw(FEW), extend_size=more)


def _models(
    seed: int, vocabulary: int, noise: float
) -> tuple[Callable[[Sequence[int]], Any], Callable[[Sequence[int]], Any]]:
    """Logits of a target that reads two tokens, and of a draft that is off by ``noise``."""

    @cache
    def normal(salt: int, text: Text) -> Any:
        return np.random.default_rng([seed, salt, *text]).normal(size=vocabulary)

    def target(path: Sequence[int]) -> Any:
        return 3 * normal(0, tuple(path[-2:]))

    return target, lambda path: target(path) + noise * normal(1, tuple(path[-3:]))


@st.composite
def _cases(draw: Any) -> tuple[Case, Any, Any]:
    name, system = draw(_systems())
    vocabulary = draw(st.integers(5, 9))
    models = draw(st.integers(0, 10**6)), vocabulary, draw(st.sampled_from((0.0, 1.0, 3.0)))
    target, draft = _models(*models)
    prompt = tuple(draw(st.lists(st.integers(0, 4), min_size=1, max_size=3)))
    prompt *= draw(st.sampled_from((1, 1, 40)))  # of several chunks
    sizes = draw(st.integers(1, 30)), draw(st.integers(1, 5))
    return Case(system, name, _greedy(target), _ranked(draft), prompt, *sizes), target, draft


@given(_cases(), st.integers(0, 100))
@examples(1600)
def test_it_decides_what_the_package_decides(drawn: tuple[Case, Any, Any], seed: int) -> None:
    case, target, draft = drawn
    made = _by_mini(case, seed)
    assert made == _by_package(case, target, draft)
    plain = case.prompt
    while len(plain) < len(case.prompt) + case.wanted:
        plain += (case.target(plain),)
    assert made.text == plain[len(case.prompt) :]


# --- times ----------------------------------------------------------------------------------------


class ModelSource:
    """The acceptance of one prompt's models; every request begins with it."""

    def __init__(self, case: Case) -> None:
        self._case = case

    def open(self, session: int, prompt_tokens: int, levels: int = 0) -> ModelOracle:
        return ModelOracle(self._case)


class ModelOracle:
    """The target's text, and the draft's answers by the text before them."""

    whole = False

    def __init__(self, case: Case) -> None:
        self._case, self._text = case, case.prompt
        self._scratch = Scratch[None]()

    def truth(self, index: int) -> int:
        while len(self._text) <= len(self._case.prompt) + index:
            self._text += (self._case.target(self._text),)
        return self._text[len(self._case.prompt) + index]

    def rewrite(self, index: int, token: int) -> None:
        raise AssertionError("no rule is lossy")

    def kept(self, first: int, index: int) -> bool:
        raise AssertionError("no chain is judged at once")

    def draft(self, order: DraftPass) -> Drafted:
        paths = self._scratch.follow(order).asked
        read = self._scratch.read
        self.truth(read - len(self._case.prompt))
        offers = [self._case.draft(self._text[:read] + path)[: order.top_k] for path in paths]
        tokens = [[token for token, _ in each] for each in offers]
        return Drafted(order.ticket, tokens, [[log_q for _, log_q in each] for each in offers])


@dataclass(frozen=True)
class Times:
    """When tokens were final, and the passes of each device: kind, begin, end, rows."""

    final: list[tuple[float, int]]
    passes: list[list[tuple[str, float, float, int]]]

    @classmethod
    def until(
        cls,
        final: Sequence[tuple[float, int]],
        passes: Iterator[tuple[int, str, float, float, int]],
        devices: int,
    ) -> Times:
        """All until the last token; a prune has no rows, and decisions are in the tokens' times."""
        end = final[-1][0] - CLOSE
        rows = [[] for _ in range(devices)]  # type: list[list[tuple[str, float, float, int]]]
        for device, kind, begin, stop, count in passes:
            if stop < end and kind != "decide" and (count or kind == "prune"):
                rows[device].append((kind, begin, stop, 0 if kind == "prune" else count))
        return cls([*final], rows)

    def without(self, kind: str) -> Times:
        passes = [[each for each in device if each[0] != kind] for device in self.passes]
        return replace(self, passes=passes)

    def assert_close(self, other: Times) -> None:
        assert [count for _, count in self.final] == [count for _, count in other.final]
        assert _apart([at for at, _ in self.final], [at for at, _ in other.final]) < CLOSE
        for ours, theirs in zip(self.passes, other.passes, strict=True):
            assert [(kind, rows) for kind, _, _, rows in ours] == [
                (kind, rows) for kind, _, _, rows in theirs
            ]
            for place in (1, 2):
                assert _apart([e[place] for e in ours], [e[place] for e in theirs]) < CLOSE


def _apart(ours: Sequence[float], theirs: Sequence[float]) -> float:
    return max((abs(a - b) for a, b in zip(ours, theirs, strict=True)), default=0.0)


def _timed_by_package(deployment: Deployment, source: AcceptanceSource) -> Times:
    trace = simulate(deployment, source)
    names = {name: number for number, name in enumerate(deployment.roles.devices)}
    passes = (
        (names[span.device], span.kind, span.start_ms, span.end_ms, span.tokens)
        for span in trace.spans
        if span.kind in ("draft", "evaluate", "decide", "compute", "prune")
    )
    (request,) = trace.requests
    return Times.until(request.emitted, passes, len(names))


def _timed_by_mini(case: Case, deployment: Deployment) -> Times:
    """Args: ``deployment``: its durations are taken, as plain numbers."""
    roles, wiring = deployment.roles, deployment.wiring
    work = [
        {
            "draft": each.times.draft.points,
            "evaluate": each.times.evaluate.points,
            "compute": each.times.stage.points,
            "decide": {1: each.times.decide},
            "prune": {1: each.times.prune},
        }
        for each in roles.placed
    ]

    def link(sender: int, to: int) -> tuple[float, float]:
        times = wiring.pairs.get((roles.devices[sender], roles.devices[to]), wiring.default)
        rate = times.bandwidth_mbit_s
        return times.latency_ms, inf if rate is None else rate * 1e6 / 8 / 1e3

    log = mini.simulate(case.devices, work, link, roles.row_bytes)
    final, left = list[tuple[float, int]](), case.wanted
    for _, at, _, each in log:
        if isinstance(each, mini.Step) and each.tokens and left:
            final.append((at, min(left, len(each.tokens))))
            left -= final[-1][1]
    passes = (
        (device, each.kind, begin, end, each.rows)
        for begin, end, device, each in log
        if isinstance(each, mini.Work)
    )
    return Times.until(final, passes, len(work))


def _of_pool(scenario: Scenario, prompt: Text) -> tuple[AcceptanceSource, Target, Draft]:
    """A scenario's acceptance for its first request, and the same as functions of the text: the
    text that was drawn, and the draft's candidates, which depend on the path alone."""
    pool, block, ratio = acceptance_pool(scenario)
    source = PoolSource(pool, block, scenario.seed, ratio)
    truth = source.open(1, len(prompt)).truth

    def target(text: Text) -> int:
        new = text[len(prompt) :]
        on_path = all(token == truth(index) for index, token in enumerate(new))
        return truth(len(new)) if on_path else 0  # off the path nobody looks

    @cache
    def draft(text: Text) -> list[tuple[int, float]]:
        oracle, new = source.open(1, len(prompt)), text[len(prompt) + 1 :]
        answer = oracle.draft(DraftPass(1, text[: len(prompt) + 1], (), (), True, 10))
        if new:
            chain = tuple(range(-1, len(new) - 1))
            answer = oracle.draft(DraftPass(2, (), new, chain, False, 10))
        return [
            (int(t), float(q)) for t, q in zip(answer.tokens[-1], answer.log_probs[-1], strict=True)
        ]

    return source, target, draft


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("name", SHIPPED)
def test_it_times_the_shipped_scenarios_as_the_package_does(name: str, number: int) -> None:
    """The scenario's first, second and third prompt, one at a time and as the first."""
    path = ROOT / "studies" / "scenarios" / f"{name}.toml"
    scenario = Scenario.load(path, ['schedule.ends="draft"'] if name == "pp" else [])
    deployment = deploy(scenario)
    spec = deployment.requests[number]
    deployment = deployment.asked((spec,))
    source, target, draft = _of_pool(scenario, spec.prompt)
    if name == "pp":
        system = mini.SYSTEMS[name]
    else:
        keys: Any = scenario.schedule
        names = ("tree_size", "tree_depth", "top_k", "segment_tokens")
        system = replace(mini.SYSTEMS[name], **{each: getattr(keys, each) for each in names})
    stages = len(deployment.roles.pipelines[0])
    case = Case(system, name, target, draft, spec.prompt, spec.max_new_tokens, stages)
    made = _timed_by_mini(case, deployment)
    assert len(made.final) > 5
    made.assert_close(_timed_by_package(deployment, source))


MS = st.floats(0.01, 30.0).map(lambda ms: round(ms, 4))
LONG_MS = MS.map(lambda ms: ms + 5)
SHORT_MS = MS.map(lambda ms: ms / 10)


@st.composite
def _durations(draw: Any, stages: int) -> tuple[Roles, Wiring]:
    def table(ms: st.SearchStrategy[float] = MS) -> TimeTable:
        first = draw(ms)
        return TimeTable({1: first, draw(st.integers(2, 30)): first + draw(MS)})

    def times() -> DeviceTimes:
        return DeviceTimes(table(LONG_MS), table(), table(), draw(MS), draw(SHORT_MS))

    def link() -> LinkTimes:
        return LinkTimes(draw(MS), draw(st.sampled_from((None, 1.0, 7.3, 1000.0))))

    crew = tuple(Placed(f"stage{number}", times()) for number in range(1, stages + 1))
    roles = Roles((Placed("draft0", times()),), (crew,), row_bytes=draw(st.sampled_from((0, 1024))))
    some = [pair for pair in roles.connections if draw(st.booleans())]
    return roles, Wiring(link(), {pair: link() for pair in some})


def _coarse(draft: Draft) -> Draft:
    """The same, with many equal scores and certain tokens."""
    return lambda text: [(token, min(0.0, 1.0 + round(log_q))) for token, log_q in draft(text)]


@given(st.data())
@examples(400)
def test_it_times_any_tree_as_the_package_does(data: st.DataObject) -> None:
    """But for the begin of prunes at a round's end, which the next test tells. Prunes are shorter
    than passes, so that no pass waits for one of them."""
    case, _, _ = data.draw(_cases())
    case = replace(case, prompt=case.prompt[:64])  # the package decides on every chunk
    if data.draw(st.booleans()):
        case = replace(case, draft=_coarse(case.draft))
    roles, wiring = data.draw(_durations(case.stages))
    spec = RequestSpec(case.prompt, case.wanted)
    deployment = Deployment("test", roles, wiring, Service(case.schedule), requests=(spec,))
    made = _timed_by_mini(case, deployment).without("prune")
    made.assert_close(_timed_by_package(deployment, ModelSource(case)).without("prune"))


def test_a_round_that_ends_is_pruned_sooner_in_the_package() -> None:
    """In the authors' code, and here, a stage takes its next segment, and then the step's word. In
    the package it does not wait for a segment that the word drops (``treepipe/core/stage.py``)."""
    target, draft = _models(0, 6, 3.0)
    system = replace(mini.SYSTEMS["pruned_pp"], tree_size=5, tree_depth=2, top_k=2)
    case = Case(system, "pruned_pp", _greedy(target), _ranked(draft), (0,), 8, 2)
    slow, fast, draws = (
        DeviceTimes(*(TimeTable({1: ms}) for ms in (stage, 1.0, 1.0)), 0.5, 0.25)
        for stage in (20.0, 5.0, 1.0)
    )
    crew = Placed("stage1", slow), Placed("stage2", fast)
    roles = Roles((Placed("draft0", draws),), (crew,))
    spec = RequestSpec(case.prompt, case.wanted)
    service = Service(case.schedule)
    deployment = Deployment("test", roles, Wiring(LinkTimes(1.0)), service, requests=(spec,))
    made = _timed_by_mini(case, deployment)
    package = _timed_by_package(deployment, ModelSource(case))
    made.without("prune").assert_close(package.without("prune"))
    ours, theirs = (
        [each for each in times.passes[2] if each[0] == "prune"] for times in (made, package)
    )
    sooner = [mine[1] - other[1] for mine, other in zip(ours, theirs, strict=True)]
    assert max(sooner) > 1
    assert min(sooner) > -CLOSE


# --- what it is -----------------------------------------------------------------------------------


def test_it_is_short_and_needs_numpy_and_simpy_alone() -> None:
    assert len(FILE.read_text(encoding="utf-8").splitlines()) <= 500
    needed = {name.split(".")[0] for name in modules(FILE)} - set(sys.stdlib_module_names)
    assert needed == {"numpy", "simpy"}


def test_its_example_shows_each_system_faster_than_the_one_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    mini.main()
    head, *lines = capsys.readouterr().out.splitlines()
    table, timeline = lines[:-5], lines[-5:]
    assert head.split() == ["system", "rounds", "ms", "per", "token"]
    assert [line.split()[0] for line in table] == [*SHIPPED]
    speeds = [float(line.split()[2]) for line in table]
    assert speeds == sorted(speeds, reverse=True)
    assert [line[:7].strip() for line in timeline] == [
        "draft",
        *(f"stage {n}" for n in range(1, 5)),
    ]
    assert all("#" in line and "." in line for line in timeline)


def test_score_aware_expansion_adds_as_many_nodes_as_its_size() -> None:
    """FlowSpec, 3.4: "the top-L_se nodes with the highest cumulative scores among the remaining
    ones". Here L_se = 1, and the children of the better node outrank the other one."""
    sizes = {"tree_size": 1, "tree_depth": 0, "top_k": 2, "segment_tokens": 1}
    more = {"expand_size": 2, "expand_depth": 0, "extend_size": 1}
    system = replace(mini.SYSTEMS["flowspec"], **sizes, **more)
    target, draft = _models(0, 6, 1.0)
    case = Case(system, "flowspec", _greedy(target), _ranked(draft), (0,), 6, 3)
    assert _by_mini(case).computed[0] == [1, 1, 1, 1, 2, 1, 1]
    assert _by_package(case, target, draft).computed[0] == [1, 1, 1, 1, 2, 1, 1]
