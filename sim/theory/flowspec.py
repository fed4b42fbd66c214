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
