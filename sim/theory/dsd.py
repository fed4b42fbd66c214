"""DSD: speculation over slow links (section 3), with t0 a pass's compute and t1 a link's latency.

The simulator agrees exactly with a pass of N stages and N - 1 links if t0 is the sum of the stages'
times and the links to and from the draft server cost nothing.
"""

from __future__ import annotations


def plain_ms(tokens: int, nodes: int, compute_ms: float, link_ms: float) -> float:
    """Compute the time of plain decoding of k tokens: k (t0 + (N - 1) t1).

    >>> plain_ms(10, 4, 20.0, 100.0)
    3200.0
    """
    return tokens * (compute_ms + (nodes - 1) * link_ms)


def speculative_ms(draft_ms: float, window_ms: float, nodes: int, link_ms: float) -> float:
    """Compute the time of one window: the part of drafting that does not hide (``draft_ms``), then
    one pass over all its tokens, t0(gamma) + (N - 1) t1.

    >>> speculative_ms(15.0, 25.0, 4, 100.0)
    340.0
    """
    return draft_ms + window_ms + (nodes - 1) * link_ms


def gain(tokens: float, nodes: int, compute_ms: float, link_ms: float, window_ms: float) -> float:
    """Compute plain time over that of windows of ``window_ms`` (``speculative_ms``) and ``tokens``.

    >>> gain(4.0, 4, 20.0, 100.0, 320.0)
    4.0
    """
    return tokens * (compute_ms + (nodes - 1) * link_ms) / window_ms
