"""FlowSpec's timeline: segments one behind another through a pipeline (section 4.1, Naive PP).

Law of this file: constant times per stage and segment; nothing is pruned in flight.
"""

from __future__ import annotations

from collections.abc import Sequence


def timeline_ms(server_ms: Sequence[Sequence[float]], delay_ms: Sequence[float]) -> list[float]:
    """When each segment is back, all being ready to leave at 0.

    F[k][n] = max(F[k][n-1] + delay, F[k-1][n]) + c_n(k): a server (a stage; a link that is kept
    busy; the draft server's evaluation) takes a segment when it is there and the one before it is
    done.

    Args:
        server_ms: [segments][servers], how long a segment keeps each of them busy.
        delay_ms: [servers + 1], before the first one and behind each of them.

    >>> timeline_ms([[20.0, 30.0], [20.0, 30.0]], [1.0, 1.0, 1.0])
    [53.0, 83.0]
    """
    free = [0.0] * len(server_ms[0])
    back = []
    for times in server_ms:
        here = delay_ms[0]
        for server, time in enumerate(times):
            free[server] = max(here, free[server]) + time
            here = free[server] + delay_ms[server + 1]
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
