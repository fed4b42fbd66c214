"""What each schedule reads of its section: bounds of its trees hold, and depend on nothing else.

Caches, buffers and refusals are sized by the bounds, so a bound that reads a key which the schedule
does not read is too small for some value of it, or too large.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

from tests.worlds.any_section import SCHEDULES
from tests.worlds.demo import demo, simulated
from treepipe.core.schedules import systems
from treepipe.core.system import Bounds
from treepipe.scenario.resolve import deploy
from treepipe.scenario.scenario import Scenario
from treepipe.scenario.schedule_check import unused_warnings
from treepipe.scenario.schema import ScheduleSection

OTHER: dict[str, Any] = {
    "tree_size": 7,
    "tree_depth": 1,
    "top_k": 2,
    "segment_tokens": 2,
    "score_order": False,
    "expand_size": 3,
    "expand_depth": 1,
    "score_aware": True,
    "cancels": True,
    "branching": (2, 2),
    "gamma": 2,
    "depth_range": (2, 400),
    "restart": "miss",
    "cutoff": (0.2, 0.1, 0.1),
    "ahead": 9,
    "width": 2,
    "children": 2,
    "layers_per_step": 2,
    "groups": 2,
    "overlapped_pruning": True,
    "draft_reuse": False,
    "draft_ahead": True,
    "fan_out": 2,
    "jit_speculate": True,
    "dynamic_length": True,
    "central_transfers": False,
    "parallel_prefill": False,
    "batch": 2,
    "anchors": False,
    "receives_first": False,
    "feedback": "broadcast",
    "drafts_first": True,
    "lookup": 2,
}
"""Not the default."""
READ_BY_ALL = ("prefill_chunk", "ends")
BASES: list[dict[str, Any]] = [
    *({"name": name} for name in SCHEDULES),
    {"name": "pipedec", "draft_reuse": False},
    {"name": "starsd", "depth_range": (1, 8)},
    {"name": "starsd", "branching": (2, 1)},
    {"name": "starsd", "tree_size": 5},
    {"name": "starsd", "depth_range": (1, 8), "branching": (2, 1)},
    {"name": "starsd", "depth_range": (1, 8), "tree_size": 5},
    {"name": "flowspec", "score_aware": True},
    {"name": "flowspec_free", "score_aware": True},
]
SMALL = ("runs=1", "workload={requests=3,concurrency=3,prompt_tokens=20,new_tokens=7}")


@functools.cache
def small_demo() -> Scenario:
    return demo(*SMALL, "pipelines.0.stages.0.count=2")


def scheduled(section: dict[str, Any]) -> Scenario:
    return small_demo().model_copy(update={"schedule": ScheduleSection.model_validate(section)})


def behaviour(section: dict[str, Any]) -> list[tuple[object, ...]]:
    """All that a simulation does."""
    trace = simulated(deploy(scheduled(section)))
    return [(s.device, s.kind, s.start_ms, s.end_ms, s.tokens) for s in trace.spans]


def bounds(section: dict[str, Any]) -> Bounds:
    given = ScheduleSection.model_validate(section)
    return given.system.bounds(given.parameters, 3)


def test_every_key_is_tried() -> None:
    assert set(OTHER) == set(ScheduleSection.model_fields) - {"name", *READ_BY_ALL}
    usual = [(system.keys, system.parameters()) for system in systems().values()]
    for key, value in OTHER.items():
        assert any(key in keys and getattr(each, key) != value for keys, each in usual)


@pytest.mark.parametrize("base", BASES, ids=lambda base: "-".join(map(str, base.values())))
def test_keys_that_are_not_read_change_nothing_and_are_warned_of(base: dict[str, Any]) -> None:
    not_read: dict[str, Any] = {}
    for key in set(OTHER) - set(base):
        other = {**base, key: OTHER[key]}
        chosen = ScheduleSection.model_validate(other)
        read = key in chosen.system.keys and key not in chosen.unread
        told = unused_warnings(scheduled(other))
        assert any(each.startswith(f"key schedule.{key} ") for each in told) != read
        if not read:
            assert bounds(other) == bounds(base), key
            not_read[key] = OTHER[key]
    assert behaviour({**base, **not_read}) == behaviour(base)


def test_a_key_that_is_read_has_an_effect_somewhere() -> None:
    """Otherwise the table of read keys could simply name all of them."""
    layered = "width children groups draft_reuse overlapped_pruning central_transfers "
    effective = {
        "starsd": "depth_range branching gamma tree_size",
        "chain": "gamma",
        "ssd": "gamma fan_out jit_speculate",
        "flowspec": "tree_size expand_size segment_tokens score_aware",
        "flowspec_free": "score_aware expand_size cancels",
        **dict.fromkeys(("pipedec", "specpipe"), layered + "parallel_prefill"),
        "pipeinfer": "gamma top_k restart cutoff ahead cancels",
        "pipespec": "gamma draft_ahead ahead lookup",
        "spd": "anchors",
        "engine_pp": "receives_first feedback drafts_first",
    }
    for name, keys in effective.items():
        usual = behaviour({"name": name})
        for key in keys.split():
            default = getattr(systems()[name].parameters(), key)
            other = not default if isinstance(default, bool) else OTHER[key]
            assert behaviour({"name": name, key: other}) != usual, (name, key)


def test_pipedec_and_specpipe_differ_as_their_papers_do() -> None:
    """With the same parameters; each difference is a key, and there are no others."""
    keys = {"width": 4, "children": 4}
    assert behaviour({"name": "pipedec", **keys}) != behaviour({"name": "specpipe", **keys})
    alike = {"overlapped_pruning": True, "central_transfers": False, "parallel_prefill": False}
    same = behaviour({"name": "pipedec", **keys, **alike})
    assert same == behaviour({"name": "specpipe", **keys})
