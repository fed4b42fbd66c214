"""How many requests share a pass where a scenario says "auto": by stages, memory and tables."""

from __future__ import annotations

import pytest

from tests.worlds.demo import deployed
from treepipe.scenario.deployment import Deployment
from treepipe.scenario.memory import memory_needs

AUTO = ("schedule={name='pp'}", "serving.batch=auto")


def stages(count: int, device: str = "{stage_ms={1=20}}") -> str:
    return f"pipelines=[{{stages=[{{device={device},count={count}}}]}}]"


def chosen(*settings: str) -> Deployment:
    return deployed(*AUTO, *settings)


def reason(deployment: Deployment) -> str:
    (told,) = [each for each in deployment.warnings if "serving.batch" in each]
    return told


@pytest.mark.parametrize(
    ("clients", "count", "batch"),
    [(1, 4, 1), (4, 4, 1), (8, 4, 2), (9, 4, 3), (32, 4, 8), (5, 1, 5)],
)
def test_every_stage_has_its_share_of_the_open_requests(
    clients: int, count: int, batch: int
) -> None:
    workload = f"workload={{requests=40,concurrency={clients}}}"
    deployment = chosen(workload, stages(count))
    assert deployment.service.pass_requests == batch
    assert f"is {batch} (requests in a pass): {clients} open at once for {count}" in reason(
        deployment
    )


@pytest.mark.parametrize("bound", ["places", "admission"])
def test_what_bounds_the_open_requests_bounds_the_batch(bound: str) -> None:
    workload = "workload={requests=40,concurrency=32}"
    assert chosen(workload, stages(4), f"serving.{bound}=8").service.pass_requests == 2


@pytest.mark.parametrize(
    ("table", "batch"),
    [
        ("{1=20,2=30,4=80,8=320}", 2),  # 20, 15, 20 ms and more for each request
        ("{1=20,2=50,4=60}", 8),  # the last slope goes on: 80 ms for 8
        ("{1=20,2=40,8=160}", 1),  # no less for each: alone is as good
    ],
)
def test_a_pass_is_no_larger_than_where_a_row_takes_least_time(table: str, batch: int) -> None:
    workload = "workload={requests=40,concurrency=32}"
    deployment = chosen(workload, stages(4, f"{{stage_ms={table}}}"))
    assert deployment.service.pass_requests == batch
    assert ("no less time each" in reason(deployment)) == (batch < 8)


def test_a_pass_is_no_larger_than_what_memory_holds() -> None:
    """Room for the buffers of five requests, and not for those of six."""
    long = "workload={requests=40,concurrency=32,prompt_tokens=1000,new_tokens=1000}"
    base = ("target={profile='llama-3.1-8b'}", "drafts=[{}]", long)
    large = stages(4, "{stage_ms={1=20},memory_mib=1e8}")

    def need(batch: int) -> float:
        deployment = chosen(*base, large, f"serving.batch={batch}")
        return max(each.total for each in memory_needs(deployment))

    assert need(5) < need(6)
    room = (need(5) + need(6)) / 2
    deployment = chosen(*base, stages(4, f"{{stage_ms={{1=20}},memory_mib={room}}}"))
    assert deployment.service.pass_requests == 5
    assert "buffers for more do not fit" in reason(deployment)
