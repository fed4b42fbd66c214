"""FlowSpec's timeline: segments one behind another through a pipeline (section 4.1, Naive PP).

Law of this file: constant times per stage and segment; nothing is pruned in flight.
"""

from __future__ import annotations

from collections.abc import Sequence


def timeline_ms(stage_ms: Sequence[Sequence[float]], hop_ms: float) -> list[float]:
    """When each segment is back, all having left the draft server at 0.

    F[k][n] = max(F[k][n-1] + hop, F[k-1][n]) + c_n(k): a stage takes a segment when it is there
    and the one before it is done.

    Args:
        stage_ms: [segments][stages], time of each pass.

    >>> timeline_ms([[20.0, 30.0], [20.0, 30.0]], 1.0)
    [53.0, 83.0]
    """
    free = [0.0] * len(stage_ms[0])
    back = []
    for times in stage_ms:
        here = hop_ms
        for stage, time in enumerate(times):
            free[stage] = max(here, free[stage]) + time
            here = free[stage] + hop_ms
        back.append(here)
    return back


def naive_round_ms(
    draft_ms: float, stages: int, stage_ms: float, hop_ms: float, decide_ms: float
) -> float:
    """A Naive PP round of N + 1 segments over N equal stages: G + 2 N c + (N + 1) hop + v.

    The last of N + 1 segments leaves the last stage after 2 N passes. N hops are between the
    devices on the way out and one is back. The simulator agrees exactly if evaluating the earlier
    segments (which the draft server does on its own) takes no longer than a pass.

    Args:
        draft_ms: G, all passes that draft the tree.
        decide_ms: v, evaluation and decision of the last segment.

    >>> naive_round_ms(21.0, 4, 20.0, 1.0, 3.0)
    189.0
    """
    return draft_ms + 2 * stages * stage_ms + (stages + 1) * hop_ms + decide_ms
