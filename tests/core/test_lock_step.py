"""When a step of a pipeline in lock-step is over, and what flies."""

from __future__ import annotations

import pytest

from treepipe.core.barrier import LockStep
from treepipe.core.errors import ProtocolError
from treepipe.core.messages import Through


def test_a_pipeline_holds_a_flight_per_group_from_the_first_session_on() -> None:
    steps = LockStep(0, [1, 3])
    before = steps.join(1, 7)
    assert before is not None
    assert [flight.beat for flight in before] == [0, 1]
    assert steps.fly(1, []).beat == 2
    assert steps.join(1, 8) is None, "its steps are under way"
    assert steps.sessions(1) == [7, 8]
    assert steps.join(0, 9) == [], "the other pipeline is at rest"


def test_a_step_is_over_when_all_groups_have_computed_theirs() -> None:
    """While the last of three groups computes flight 0, those before it have flights 1 and 2."""
    steps = LockStep(0, [3])
    first, *_ = [*(steps.join(0, 7) or []), steps.fly(0, [])]
    steps.arrive(first, "payload")
    for group, beat in ((0, 0), (1, 0), (0, 1), (0, 2)):
        assert [*steps.over(0)] == []
        steps.through(Through(0, 0, group, beat))
    assert [*steps.over(0)] == []
    steps.through(Through(0, 0, 1, 1))
    assert [*steps.over(0)] == [(first, "payload")]
    assert [*steps.over(0)] == []


@pytest.mark.parametrize(("group", "beat"), [(0, 1), (1, 0), (2, 0)])
def test_groups_report_their_flights_in_turn(group: int, beat: int) -> None:
    with pytest.raises(ProtocolError, match="out of turn"):
        LockStep(0, [2]).through(Through(0, 0, group, beat))


def test_it_is_at_rest_when_nobody_takes_part_and_all_flights_are_back() -> None:
    steps = LockStep(0, [2])
    assert steps.at_rest
    steps.join(0, 7)
    steps.fly(0, [])
    steps.left(7)
    for _ in range(2):
        assert not steps.at_rest
        steps.landed(0)
    assert steps.at_rest
