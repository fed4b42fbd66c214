"""Workers are lost in any order: each request is served, or ends with a reason.

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
from treepipe.core.failover import AfterLoss, EndRun, Failover, GiveUp, Replace, Spare
from treepipe.core.requests import Assignment, RequestTrace
from treepipe.scenario.deployment import Deployment, RequestSpec
from treepipe.scenario.desks import front_desk
from treepipe.scenario.resolve import deploy
from treepipe.scenario.scenario import Scenario

LAYERS, REQUESTS = 6, 6
NAMED = tuple(Spare(f"10.0.0.{host}:5600") for host in (8, 9))


@cache
def deployed(servers: int, pipelines: int, stages: int) -> Deployment:
    stage = {"count": stages, "device": {"stage_ms": {1: 9.0}}}
    scenario = Scenario.of(
        {
            "name": "boards",
            "target": {"layers": LAYERS, "hidden_size": 64},
            "drafts": [{"count": servers, "device": {"draft_ms": {1: 3.0}}}],
            "pipelines": [{"count": pipelines, "stages": [stage]}],
            "links": {"default": {"latency_ms": 1.0}},
            "schedule": {"name": "chain"},
            "acceptance": {"source": "bernoulli", "beta": 0.6},
            "workload": {"requests": REQUESTS, "concurrency": 2 * pipelines, "new_tokens": 4},
        }
    )
    return replace(deploy(scenario), requests=(RequestSpec((1,), 4),) * REQUESTS)


class Losses(RuleBasedStateMachine):
    """A world that loses workers as it likes."""

    @initialize(
        shape=st.tuples(st.integers(1, 2), st.integers(1, 3), st.integers(1, 3)),
        spares=st.sampled_from([(), (Spare(),) * 2, NAMED, NAMED[:1] * 2]),
    )
    def begin(self, shape: tuple[int, int, int], spares: tuple[Spare, ...]) -> None:
        self.whole = deployed(*shape)
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

    def _waiting(self, answer: bool) -> list[Spare]:
        """As a world tells it: a spare that has a place waits no more."""
        return [*(self.given - self.used).elements()] if answer else []

    def _note_used(self, order: AfterLoss, waiting: list[Spare]) -> None:
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

    @rule(which=st.integers(0, 99), answer=st.booleans())
    def lose(self, which: int, answer: bool) -> None:
        there = sorted(self.working)
        worker, before = there[which % len(there)], self.front.lost
        waiting, pipeline = self._waiting(answer), self.deployment.pipeline_of(worker)
        self.working.remove(worker)
        order = self.failover.lost(worker, waiting)
        self._note_used(order, waiting)
        assert isinstance(order, Replace) == bool(waiting), "nothing else while a spare is there"
        others = {*range(len(self.whole.roles.pipelines))} - {pipeline} - before
        match order:
            case Replace():
                self.working.add(worker)
            case GiveUp(given_up):
                assert given_up == pipeline
                assert others
                assert not self.front.done, "no request is left for the other stages"
                self.working -= {s.name for s in self.deployment.roles.pipelines[given_up]}
                ended = [each for each in self.open.values() if each.pipeline == given_up]
                for each in ended:
                    self._finish(each.session, "worker lost")
            case EndRun():
                assert pipeline is None or not others or self.front.done, "no way on"
                self._begin_run()

    @invariant()
    def who_is_open_is_served(self) -> None:
        """By workers that are there."""
        for each in self.open.values():
            self._assert_served(each)

    def _assert_served(self, each: Assignment) -> None:
        assert each.pipeline not in self.front.lost
        assert each.draft is not None
        stages = self.deployment.roles.pipelines[each.pipeline]
        assert {
            self.deployment.roles.drafts[each.draft].name,
            *[s.name for s in stages],
        } <= self.working


def test_whoever_is_lost_each_open_request_is_served_or_ended() -> None:
    run_state_machine_as_test(Losses, settings=examples(1600, stateful_step_count=30))
