"""StarSD: one draft server for N targets (section 4, eq. 4-12, and Appendix C), in steady state.

``Cycle`` has the equations, ``cycle_of`` Z and S from a deployment's devices and links.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from treepipe.scenario.passage import Passage
from treepipe.sim.theory.tokens import accepted, committed

DIGITS = 9
"""Decimal digits to which a quotient is rounded before its ceiling or floor is taken."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """A round of one target, and its consequences for N equal ones.

    The simulator agrees exactly with constant times once all targets are under way
    (``steady`` cuts off prefill and ends).

    Attributes:
        back_ms: Z, from the end of a service to the target's next request (eq. 6: t_c + t_v).
        service_ms: S, one depth-d request at the draft (eq. 5: d t_s), decision included.
        tokens: tokens of a round and target, E[l] (eq. 3) or with the target's own token.
    """

    back_ms: float
    service_ms: float
    tokens: float

    @property
    def n_full(self) -> int:
        """The fewest targets that load the draft fully: ceil(Z / S) + 1 (eq. 12).

        >>> Cycle(42.0, 15.0, 2.7).n_full, Cycle(40.0, 20.0, 3.0).n_full
        (4, 3)
        """
        return math.ceil(round(self.back_ms / self.service_ms, DIGITS)) + 1

    def idle_ms(self, targets: int) -> float:
        """Idle time of an iteration, in which every target has one turn: max(0, Z - (N - 1) S).

        >>> Cycle(42.0, 15.0, 2.7).idle_ms(2)
        27.0
        """
        return max(0.0, self.back_ms - (targets - 1) * self.service_ms)

    def wait_ms(self, targets: int) -> float:
        """Wait of a request for the draft per turn: max(0, (N - 1) S - Z), the converse of eq. 9.

        >>> Cycle(42.0, 15.0, 2.7).wait_ms(5)
        18.0
        """
        return max(0.0, (targets - 1) * self.service_ms - self.back_ms)

    def iteration_ms(self, targets: int) -> float:
        """N S + idle (eq. 8, 10), which is also max(N S, Z + S).

        >>> Cycle(42.0, 15.0, 2.7).iteration_ms(2), Cycle(42.0, 15.0, 2.7).iteration_ms(5)
        (57.0, 75.0)
        """
        return targets * self.service_ms + self.idle_ms(targets)

    def load(self, targets: int) -> float:
        """Share of its time that the draft serves: N S over the iteration.

        >>> Cycle(45.0, 15.0, 2.7).load(1), Cycle(45.0, 15.0, 2.7).load(4)
        (0.25, 1.0)
        """
        return targets * self.service_ms / self.iteration_ms(targets)

    def target_throughput(self, targets: int) -> float:
        """Tokens per second of one target (eq. C.3).

        >>> Cycle(45.0, 15.0, 3.0).target_throughput(2)
        50.0
        """
        return self.tokens * self.target_rounds(targets)

    def target_rounds(self, targets: int) -> float:
        """R_p, rounds of one target per second (Appendix C).

        >>> Cycle(35.0, 15.0, 3.0).target_rounds(2)
        20.0
        """
        return 1e3 / self.iteration_ms(targets)

    def draft_rounds(self, targets: int) -> float:
        """R_q = N R_p, turns of the draft per second (Appendix C).

        >>> Cycle(35.0, 15.0, 3.0).draft_rounds(2)
        40.0
        """
        return targets * self.target_rounds(targets)

    def n_max(self, alone_tokens_s: float) -> int:
        """Return the largest number of targets each as fast as decoding alone (section 4.2).

        0 if not even one is. Beyond n_full a target has tokens / (N S), so N <= tokens / (S rate).

        >>> Cycle(45.0, 15.0, 3.0).n_max(25.0), Cycle(45.0, 15.0, 3.0).n_max(60.0)
        (8, 0)
        """
        iteration = 1e3 * self.tokens / alone_tokens_s
        if iteration < self.iteration_ms(1):
            return 0
        return math.floor(round(iteration / self.service_ms, DIGITS))


def cycle_of(passage: Passage, beta: float, gamma: int) -> Cycle:
    """Compute Z and S of one target (section 4, eq. 5 and 6) for segments of ``gamma`` + 1 nodes.

    S holds evaluation and decision besides the ``gamma`` passes, where the draft server does them.
    Pruning is part of Z only as far as drafting does not hide it.
    """
    rows = gamma + 1
    drafting = gamma * passage.draft.times.draft(1)
    back = passage.round_ms(rows, drafting, rows) - drafting
    return Cycle(back, passage.decide_ms(rows) + drafting, committed(beta, gamma))


def shared_metrics(cycle: Cycle, targets: int) -> dict[str, float]:
    between = cycle.iteration_ms(targets) / cycle.tokens
    fairness = {"fairness": 1.0} if targets > 1 else {}  # they are equal
    return {
        **fairness,
        "time_between_tokens_ms": between,
        "throughput_tokens_s": targets * cycle.target_throughput(targets),  # eq. 11, C.2
        "per_session_throughput_tokens_s": cycle.target_throughput(targets),
        "tokens_per_round": cycle.tokens,
        "tokens_per_step": cycle.tokens,
        "hit_rate": 1 - 1 / cycle.tokens,
        "flushes_per_100_tokens": 100 / cycle.tokens,
        "draft_service_ms": cycle.service_ms,
        "draft_wait_ms": cycle.wait_ms(targets),
        "draft_idle_ms": cycle.idle_ms(targets) / targets,
        "draft_rounds_s": cycle.draft_rounds(targets),
        "target_rounds_s": cycle.target_rounds(targets),
    }


def shared_terms(passage: Passage, cycle: Cycle, beta: float, gamma: int) -> dict[str, float]:
    """Return StarSD's own quantities; ``n_max`` compares with a target "without" the draft server
    (section 4.2): plain decoding that sends it nothing."""
    return {
        "service_ms": cycle.service_ms,
        "return_ms": cycle.back_ms,
        "accepted_tokens": accepted(beta, gamma),
        "n_full": cycle.n_full,
        "n_max": cycle.n_max(1e3 / passage.standalone_ms),
    }
