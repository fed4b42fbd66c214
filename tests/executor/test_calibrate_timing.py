"""How ``treepipe calibrate`` times, and what it measures in the time there is; on made clocks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from treepipe.executor.measure.budget import choose, guess_times, idle_seconds, thin
from treepipe.executor.measure.device import (
    Measurements,
    call_overhead_ms,
    idle_factors,
    request_ms,
)
from treepipe.executor.measure.timing import Effort, HostClock, Probe, Sampler, measured
from treepipe.executor.measure.work import CONTEXTS, TOKENS, WorkKind, WorkPoint


class Machine:
    """Time goes on only while it works: ``row_ms`` a row, attention over the context besides."""

    withheld = 0.0

    def __init__(self, row_ms: float) -> None:
        self.seconds, self._row_ms = 0.0, row_ms

    def now(self) -> float:
        return self.seconds

    def time_ms(self, work: Callable[[], object]) -> float:
        start = self.seconds
        work()
        return (self.seconds - start) * 1e3

    def probes(self) -> list[Probe[WorkPoint]]:
        kinds: dict[WorkKind, tuple[int, ...]] = {
            "block": CONTEXTS,
            "head": (0,),
            "embedding": (0,),
        }
        keys = [(kind, n, c) for kind, behind in kinds.items() for c in behind for n in TOKENS]
        keys += [("single", n, 0) for n in TOKENS if n <= 16]
        return [self._probe(key) for key in [*keys, ("prune", 64, 1024)]]

    def _probe(self, key: WorkPoint) -> Probe[WorkPoint]:
        kind, rows, context = key
        share = {"block": 1.0, "single": 0.25, "head": 0.5}.get(kind, 0.001)
        taken_ms = share * self._row_ms * (4 + rows * (1 + context / 8192))

        def work() -> None:
            self.seconds += taken_ms / 1e3

        return Probe(key, work)


def calibrated(row_ms: float, seconds: float) -> tuple[Machine, set[WorkPoint], str]:
    """What is measured, and what is said of it; all passes vary in nothing, so only time counts."""
    machine = Machine(row_ms)
    probes = machine.probes()
    guess = guess_times(probes, machine, machine.now)
    choice = choose(probes, TOKENS, CONTEXTS, seconds - machine.seconds, guess)
    sampler = Sampler[WorkPoint](machine, now=machine.now)
    effort = Effort(max(choice.seconds, seconds - machine.seconds), turns=1000)
    sampler.measure(choice.probes, effort, lambda *_: None)
    said = choice.sentence(TOKENS, CONTEXTS) if choice.thinned else ""
    return machine, set(measured(sampler.samples)), said


@pytest.mark.parametrize("row_ms", [0.05, 0.5, 2.0, 5.0])
def test_the_time_to_spend_holds_on_slow_machines_too(row_ms: float) -> None:
    machine, keys, said = calibrated(row_ms, 20.0)
    assert machine.seconds <= 20.0 * 1.1
    assert machine.seconds > 5.0, "what there is is used"
    assert bool(said) == (len(keys) < len(Machine(row_ms).probes()))
    assert bool(said) == (row_ms > 1)


def test_what_is_left_out_leaves_a_grid_with_both_ends() -> None:
    _, keys, said = calibrated(2.0, 20.0)
    rows = {
        context: {n for kind, n, c in keys if (kind, c) == ("block", context)}
        for context in {c for kind, _, c in keys if kind == "block"}
    }
    assert {min(rows), max(rows)} == {0, 4096}
    (tokens,) = {frozenset(each) for each in rows.values()}
    assert {min(tokens), max(tokens)} == {1, 256}
    assert {n for kind, n, _ in keys if kind == "head"} == tokens
    assert any(kind == "prune" for kind, _, _ in keys)
    assert f"{len(tokens)} of 14 token counts and {len(rows)} of 4 contexts" in said


def test_a_machine_too_slow_for_that_gives_up_the_largest_passes() -> None:
    machine, keys, said = calibrated(60.0, 20.0)
    block = [key for key in keys if key[0] == "block"]
    assert {context for _, _, context in block} == {0}
    assert max(n for _, n, _ in block) < 256
    assert len(block) >= 2, "a slope needs two"
    assert "all passes would have taken about" in said
    assert machine.seconds < 60


def test_little_work_is_never_thinned() -> None:
    machine = Machine(0.001)
    probes = machine.probes()
    assert not choose(probes, TOKENS, CONTEXTS, 0.0, guess_times(probes, machine)).thinned


def test_a_guess_from_short_passes_holds_for_long_ones() -> None:
    machine = Machine(2.0)
    guess = guess_times(machine.probes(), machine, machine.now)
    assert guess(("block", 256, 4096)) == pytest.approx(2.0 * (4 + 256 * 1.5), rel=0.01)
    assert guess(("block", 96, 0)) == pytest.approx(200.0)
    assert idle_seconds((0.0, 100.0), 50.0) == pytest.approx(4 * 0.3)


def test_thinning_keeps_the_ends() -> None:
    for count in range(2, len(TOKENS) + 1):
        some = thin(TOKENS, count)
        assert (len(set(some)), some[0], some[-1]) == (count, 1, 256)


# --- how often, and with which clock --------------------------------------------------------------


def test_points_are_visited_in_turns_until_all_are_known() -> None:
    visits: list[str] = []
    machine = Machine(0.0)

    def probe(name: str, time_ms: float) -> Probe[str]:
        def work() -> None:
            visits.append(name)
            machine.seconds += time_ms / 1e3

        return Probe(name, work, warm=False)

    sampler = Sampler[str](machine, now=machine.now)
    sampler.measure([probe("a", 5.0), probe("b", 7.0)], Effort(60.0, turns=4), lambda *_: None)
    assert visits == ["a", "b"] * 5  # the warm-up, and four turns
    found = measured(sampler.samples)
    assert [found[n].median for n in "ab"] == pytest.approx([5.0, 7.0])
    assert found["b"].passes == 4


def test_a_median_stands_beside_its_quartiles() -> None:
    found = measured({"few": [1.0, 2.0], "odd": [4.0, 1.0, 2.0, 3.0, 100.0]})
    assert list(found) == ["odd"]
    assert (found["odd"].low, found["odd"].median, found["odd"].high) == (2.0, 3.0, 4.0)
    assert found["odd"].spread == pytest.approx(2 / 3)


def test_waiting_for_a_processor_is_not_counted() -> None:
    clock = HostClock()
    work_ms = clock.time_ms(lambda: sum(range(2_000_000)))
    assert 0 < work_ms <= clock.timed_ms
    assert work_ms == pytest.approx(clock.timed_ms - clock.withheld_ms)
    assert 0 <= clock.withheld < 1


def test_overhead_is_what_one_layer_takes_more() -> None:
    """A call of n layers takes 0.3 + 2 n ms."""
    found = Measurements()
    for tokens in (1, 2, 4):
        found.passes["block", tokens, 0] = [8.3] * 3
        found.passes["single", tokens, 0] = [2.3] * 3
    assert call_overhead_ms(found, 4) == pytest.approx(0.3)
    assert call_overhead_ms(Measurements(), 4) == 0.0


def test_each_further_request_of_a_pass_adds_its_time_per_layer() -> None:
    """Three requests' rows take 0.8 ms more than one's in a block of 4 layers: 0.1 ms each."""
    found = Measurements()
    found.passes["block", 9, 64] = [8.3] * 3
    found.passes["shared", 9, 64] = [9.1] * 3
    assert request_ms(found, 4) == pytest.approx(0.1)
    assert request_ms(Measurements(), 4) == 0.0


def test_idle_factors_are_relative_to_no_gap() -> None:
    found = Measurements(idle={0.0: [2.0] * 3, 10.0: [3.0] * 3, 100.0: [4.0] * 2})
    assert idle_factors(found) == {0.0: 1.0, 10.0: 1.5}
    assert idle_factors(Measurements()) is None
