"""What the simulator remembers does not grow with the tokens it has simulated; only results do."""

from __future__ import annotations

import gc
from collections import Counter

import pytest

from tests.worlds.demo import deployed
from treepipe.core.draft_work import Turn
from treepipe.core.messages import Beat, Flight, Segment, Word
from treepipe.core.protocol import Drafted, DraftPass
from treepipe.core.requests import RequestTrace
from treepipe.results.trace import Span
from treepipe.sim.acceptance import PoolSource
from treepipe.sim.made_pools import hit_ratio_pool
from treepipe.sim.world import Simulation

RECORDS = (Beat, Drafted, DraftPass, Flight, Segment, Span, Turn, Word)


class Counting(Simulation):
    """Counts the records that are alive when the first request ends."""

    alive: Counter[str] | None = None

    def finished(self, request: RequestTrace) -> None:
        if self.alive is None:
            kinds = [type(each) for each in gc.get_objects()]
            self.alive = Counter(kind.__name__ for kind in kinds if kind in RECORDS)
        super().finished(request)


def _alive(schedule: str, new_tokens: int) -> Counter[str]:
    overrides = [f'schedule.name="{schedule}"', f"workload.new_tokens={new_tokens}"]
    deployment = deployed("workload.requests=1", *overrides)
    source = PoolSource(hit_ratio_pool({1: 0.7, 8: 0.95}), 1, 0)
    gc.collect()
    simulation = Counting(deployment, source, record_spans=False)
    simulation.run()
    assert simulation.alive
    return simulation.alive


@pytest.mark.parametrize("schedule", ["flowspec", "flowspec_free", "specpipe", "starsd", "dsd"])
def test_a_long_request_keeps_no_more_than_a_short_one(schedule: str) -> None:
    short, long = _alive(schedule, 60), _alive(schedule, 360)
    # What is under way when a request ends differs from request to request.
    assert sum(long.values()) < sum(short.values()) + 60, f"{short} grew to {long}"
