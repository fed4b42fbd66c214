"""Workers are lost and come back in any order: each request is served, or ends with a reason.

The decision plays against a world without time that believes each order: what is started anew works
until it is lost the next time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.worlds.examples import examples
from treepipe.core.failover import (
    AfterLoss,
    DealLayers,
    DecodePlainly,
    DraftAgain,
    EndRun,
    Failover,
    GiveUp,
    Replace,
    Spare,
)
from treepipe.core.requests import Assignment, RequestTrace
from treepipe.scenario.deployment import Deployment, RequestSpec
from treepipe.scenario.desks import front_desk
from treepipe.scenario.resolve import deploy
from treepipe.scenario.scenario import Scenario

LAYERS, REQUESTS = 6, 6
NAMED = tuple(Spare(f"10.0.0.{host}:5600") for host in (8, 9))


@cache
def deployed(
    servers: int, pipelines: int, stages: int, plainly: bool, redeals: bool, room: int
) -> Deployment:
    """Args: ``room``: for so many layers on each stage."""
    stage = {"count": stages, "device": {"stage_ms": {1: 9.0}, "memory_mib": 100.0 * room + 50}}
    scenario = Scenario.of(
        {
            "name": "boards",
            "target": {"layers": LAYERS, "hidden_size": 64, "layer_mib": 100.0, "kv_kib": 1.0},
            "drafts": [{"count": servers, "device": {"draft_ms": {1: 3.0}}}],
            "pipelines": [{"count": pipelines, "stages": [stage]}],
            "links": {"default": {"latency_ms": 1.0}},
            "schedule": {"name": "chain"},
            "acceptance": {"source": "bernoulli", "beta": 0.6},
            "workload": {"requests": REQUESTS, "concurrency": 2 * pipelines, "new_tokens": 4},
            "faults": {"plain_without_draft": plainly, "redeal_layers": redeals and stages > 1},
        }
    )
    return replace(deploy(scenario), requests=(RequestSpec((1,), 4),) * REQUESTS)


class Losses(RuleBasedStateMachine):
    """A world that loses workers as it likes."""

    @initialize(
        shape=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 3)),
        rescues=st.sampled_from([(True, True), (True, False), (True, True), (False, True)]),
        room=st.sampled_from([LAYERS, LAYERS // 2]),
        spares=st.sampled_from([(), (Spare(),) * 2, NAMED, NAMED[:1] * 2]),
    )
    def begin(
        self,
        shape: tuple[int, int, int],
        rescues: tuple[bool, bool],
        room: int,
        spares: tuple[Spare, ...],
    ) -> None:
        self.whole = deployed(*shape, *rescues, max(room, -(-LAYERS // shape[2])))
        self.given = Counter(spares)
        self._begin_run()

    def _begin_run(self) -> None:
        self.front, self.used = front_desk(self.whole), Counter[Spare]()
        self.failover = Failover(self.whole, self.front, self.given.elements())
        self.working = {*self.whole.roles.devices}
        self.open = {each.session: each for each in self.front.start(0.0)}

    @property
    def deployment(self) -> Deployment:
        return self.failover.deployment

    @property
    def drafting(self) -> list[str]:
        return sorted({each.name for each in self.deployment.roles.drafts} - self.deployment.plain)

    def _waiting(self, answer: bool) -> list[Spare]:
        """As a world tells it: a spare that has a place waits no more."""
        return [*(self.given - self.used).elements()] if answer else []

    def _note_used(self, order: AfterLoss | DraftAgain | None, waiting: list[Spare]) -> None:
        spare = getattr(order, "spare", None)
        if spare is not None:
            assert spare in waiting, "it answers, and has no place yet"
            self.used[spare] += 1
        assert Counter(self.failover.spares) + self.used == self.given

    def _finish(self, session: int, reason: str) -> None:
        pipeline = self.open.pop(session).pipeline
        request = RequestTrace(session, 1, 0.0, 1.0, (), (), (), reason, pipeline)
        self.open |= {each.session: each for each in self.front.finished(request)}

    @precondition(lambda self: self.open)
    @rule(which=st.integers(0, 99))
    def finish(self, which: int) -> None:
        self._finish(sorted(self.open)[which % len(self.open)], "length")

    @precondition(lambda self: self.drafting)
    @rule(which=st.integers(0, 1), answer=st.booleans())
    def lose_a_draft(self, which: int, answer: bool) -> None:
        self._lose(self.drafting[which % len(self.drafting)], answer)

    @precondition(lambda self: self.deployment.plain)
    @rule(answer=st.booleans(), reached=st.booleans())
    def lose_a_stand_in(self, answer: bool, reached: bool) -> None:
        self._lose(min(self.deployment.plain), answer, reached=reached)

    @rule(which=st.integers(0, 99), answer=st.booleans())
    def lose_a_stage(self, which: int, answer: bool) -> None:
        stages = sorted(self.working & self.deployment.roles.layers.keys())
        self._lose(stages[which % len(stages)], answer)

    def _lose(self, worker: str, answer: bool, *, reached: bool = True) -> None:
        before, gone, waiting = self.deployment, self.front.lost, self._waiting(answer)
        was_away, pipeline = worker in before.plain, before.pipeline_of(worker)
        self.working.remove(worker)
        order = self.failover.lost(worker, waiting, () if reached else {worker})
        self._note_used(order, waiting)
        assert isinstance(order, Replace) == bool(waiting), "nothing else while a spare is there"
        if isinstance(order, DealLayers | GiveUp):
            assert not self.front.done, "no request is left for the other stages"
        if isinstance(order, DecodePlainly | DealLayers):
            assert not gone, "nothing is made anew once a pipeline was given up"
        match order:
            case Replace(spare):
                self.working.add(worker)
                drafts = not was_away or spare.address is not None or reached
                assert (worker in self.deployment.plain) is not drafts
            case DecodePlainly():
                self.working.add(worker)
                assert self.deployment.plain == before.plain | {worker} != before.plain
            case DealLayers():
                assert worker not in self.deployment.roles.devices
            case GiveUp(given_up, refused):
                assert given_up == pipeline
                assert (refused is not None) is (before.redeal is not None and not gone)
                self.working -= {stage.name for stage in before.roles.pipelines[given_up]}
                ended = [each for each in self.open.values() if each.pipeline == given_up]
                for each in ended:
                    self._finish(each.session, "worker lost")
            case EndRun():
                self._assert_no_way_on(worker, before, gone)
                self._begin_run()

    def _assert_no_way_on(self, worker: str, before: Deployment, gone: frozenset[int]) -> None:
        pipeline = before.pipeline_of(worker)
        if pipeline is None:
            assert before.faults.stand_in is None or worker in before.plain or gone
        else:
            others = {*range(len(before.roles.pipelines))} - {pipeline} - gone
            assert not others or self.front.done

    @precondition(lambda self: self.deployment.plain)
    @rule(which=st.sets(st.integers(0, 1)), answer=st.booleans(), reached=st.booleans())
    def come_back(self, which: set[int], answer: bool, reached: bool) -> None:
        before, waiting = self.deployment.plain, self._waiting(answer)
        returned = {f"draft{number}" for number in which}
        order = self.failover.back(returned, waiting, () if reached else before - returned)
        self._note_used(order, waiting)
        fitting = waiting if reached or self.given <= Counter(NAMED * 2) else []
        can = before & returned or fitting
        assert (order is not None) is (bool(can) and not self.front.lost), "at once, if any"
        assert self.deployment.plain == before - ({order.draft} if order else set())
        if order is not None:
            assert order.draft in before
            assert (order.spare is None) is (order.draft in returned)

    @invariant()
    def who_is_open_is_served(self) -> None:
        """By workers that are there, and by all layers."""
        for each in self.open.values():
            self._assert_served(each)
        for stages in self.deployment.roles.pipelines:
            assert [layer for stage in stages for layer in stage.layers] == [*range(LAYERS)]

    def _assert_served(self, each: Assignment) -> None:
        assert each.pipeline not in self.front.lost
        assert each.draft is not None
        stages = self.deployment.roles.pipelines[each.pipeline]
        assert {
            self.deployment.roles.drafts[each.draft].name,
            *[s.name for s in stages],
        } <= self.working


def test_whoever_is_lost_and_comes_back_each_open_request_is_served_or_ended() -> None:
    run_state_machine_as_test(Losses, settings=examples(1600, stateful_step_count=30))


def test_a_spare_without_an_address_waits_until_the_drafts_own_host_answers() -> None:
    deployment = deployed(1, 1, 1, True, False, LAYERS)
    failover = Failover(deployment, front_desk(deployment), (Spare(),))
    assert failover.lost("draft0", ()) == DecodePlainly()
    assert failover.back((), (Spare(),), {"draft0"}) is None
    assert failover.back((), (Spare(),)) == DraftAgain("draft0", Spare())
