"""A deployment as it is run: fitted to its machines' memory, with a number for "auto".

Law of this file: where ``serving.batch`` is "auto", every stage has its share of all open requests
of its pipeline under way, so that none is idle (a micro-batch per stage; GPipe, section 2.2); fewer
where the devices' memory does not hold the buffers of so large a pass, and of what is left the
number at which a request's rows take the slowest stage least time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from treepipe.core.errors import UserError
from treepipe.scenario.deployment import Deployment, RequestSpec
from treepipe.scenario.memory import check_memory, memory_needs, unchecked_memory


def fitting(deployment: Deployment) -> Deployment:
    """The same, once its roles are known to fit their machines with what is asked of them.

    It warns of roles whose need nothing tells, and of the number that was chosen for "auto".
    Raises ``UserError`` as ``check_memory`` does.
    """
    deployment = batched(deployment, [deployment.requests])
    needs = memory_needs(deployment)
    check_memory(deployment, needs)
    return replace(
        deployment, warnings=(*deployment.warnings, *unchecked_memory(deployment, needs))
    )


def batched(deployment: Deployment, asked: Sequence[tuple[RequestSpec, ...]]) -> Deployment:
    """The same deployment with a number for "auto", and a warning that tells it.

    Args:
        asked: what each of its runs is asked; the number is the least that one of them gives.
    """
    if deployment.serving.batch != "auto":
        return deployment
    chosen, why = min([_choice(deployment.asked(requests)) for requests in asked])
    warning = f'key serving.batch = "auto" is {chosen} (requests in a pass): {why}'
    return replace(_of(deployment, chosen), warnings=(*deployment.warnings, warning))


def _of(deployment: Deployment, batch: int) -> Deployment:
    return replace(deployment, serving=replace(deployment.serving, batch=batch))


def _choice(deployment: Deployment) -> tuple[int, str]:
    """The number, and what bounds it."""
    numbers = range(len(deployment.pipelines))
    share, most_open, stages = max(
        (-(-deployment.most_open(n) // len(deployment.pipelines[n])), deployment.most_open(n), -n)
        for n in numbers
    )
    stages = len(deployment.pipelines[-stages])
    if share <= 1:
        return 1, f"{most_open} open at once for {stages} stages"
    held = bisect_left(range(2, share + 1), True, key=lambda n: not _fits(_of(deployment, n))) + 1
    best = min(range(1, held + 1), key=lambda n: _time_per_request(deployment, n))
    if best < held:
        return best, f"more take the slowest stage no less time each (up to {held} were looked at)"
    if held < share:
        return held, f"buffers for more do not fit beside all else ({share} would fill the stages)"
    return share, f"{most_open} open at once for {stages} stages"


def _fits(deployment: Deployment) -> bool:
    try:
        check_memory(deployment, memory_needs(deployment))
    except UserError:
        return False
    return True


def _time_per_request(deployment: Deployment, requests: int) -> float:
    """Milliseconds that the slowest stage takes for each of so many requests' rows in one pass."""
    rows = requests * max(1, deployment.bounds.segment_tokens)
    stages = [stage for stages in deployment.pipelines for stage in stages]
    return max(stage.times.stage(rows) for stage in stages) / requests
