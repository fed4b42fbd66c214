"""The time of a segment's way where links and devices have nothing else to do.

Only durations, no probabilities. Jitter and losses enter with their means, context length is
ignored.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property

from treepipe.core.messages import HEADER_BYTES, ROW_BYTES
from treepipe.core.tree import split
from treepipe.physics.timing import LinkTimes
from treepipe.scenario.deployment import Deployment, Machine, Placed


@dataclass(eq=False)
class Passage:
    """The way from the draft server through a pipeline and back; all times in milliseconds, of
    passes over rows of so many ``requests``.

    What does not depend on rows is looked up once: a formula asks for thousands of rounds.
    """

    deployment: Deployment
    pipeline: int = 0
    server: int = 0
    requests: int = 1

    def shared_by(self, requests: int) -> Passage:
        """Return the same way for passes over rows of so many requests, with all that is known."""
        other = copy(self)
        other.requests = requests
        return other

    @cached_property
    def draft(self) -> Placed:
        """The draft server of this number."""
        return self.deployment.roles.drafts[self.server]

    def unread(self, accepted: int, drafted: int) -> int:
        """Count the committed tokens that the draft reads first after a chain of ``drafted`` tokens
        that it has drafted from, of which ``accepted`` were right, and the target's own token."""
        held = 0 if self.deployment.roles.reads_states else min(accepted, drafted)
        return accepted + 1 - held

    def bent_reading(self, accepted: int, drafted: int) -> list[str]:
        """Return a warning if the draft takes longer to read those tokens than one token."""
        most, draft = self.unread(accepted, drafted), self.draft.times.draft
        if draft(most) == draft(1):
            return []
        return [
            f"the closed form assumes that a draft pass takes as long for {most} tokens as for one"
        ]

    @property
    def stages(self) -> tuple[Placed, ...]:
        return self.deployment.roles.pipelines[self.pipeline]

    @cached_property
    def links(self) -> list[LinkTimes]:
        """The N + 1 links: to the first stage, between the stages, back to the draft server."""
        return [self.deployment.link(a, b) for a, b in self._hops]

    @cached_property
    def _hops(self) -> list[tuple[str, str]]:
        names = [self.draft.name, *(stage.name for stage in self.stages), self.draft.name]
        return [*itertools.pairwise(names)]

    @cached_property
    def _row_bytes(self) -> list[int]:
        """Bytes of a row on each of the links."""
        roles = self.deployment.roles
        return [roles.flight_row_bytes(sender) + ROW_BYTES for sender, _ in self._hops]

    @cached_property
    def machines(self) -> list[Machine]:
        """The machine of each stage, and of the draft server."""
        return [self.deployment.roles.machine(each.name) for each in (*self.stages, self.draft)]

    def passes_ms(self, rows: int) -> list[float]:
        tables, more = [stage.times.stage for stage in self.stages], self.requests - 1
        return [table(rows) + more * table.request_ms for table in tables]

    def verify_ms(self, rows: int) -> float:
        """Time of evaluation and decision at the last stage, 0 if they are elsewhere."""
        here = self.deployment.roles.ends == "pipeline"
        return _verification_ms(self.stages[-1], rows) if here else 0.0

    def stage_ms(self, rows: int, answered: int | None = None) -> list[float]:
        """Return the time of every stage, the last one's with evaluation and decision. The target's
        token is taken at ``answered`` rows; None: all rows."""
        *before, last = self.passes_ms(rows)
        return [*before, last + self.verify_ms(rows if answered is None else answered)]

    def hops_ms(self, rows: int) -> list[float]:
        pairs = zip(self.links, self._occupied_ms(rows), strict=True)
        return [occupied + link.mean_delay_ms for link, occupied in pairs]

    def lap_ms(self, rows: int) -> float:
        """Time of a lap, with the draft server's two hops (PipeDec, section 2.2)."""
        return sum(self.stage_ms(rows)) + sum(self.hops_ms(rows))

    @property
    def standalone_ms(self) -> float:
        """Time of a token of the pipeline without the draft server: its stages, the links between
        them, and the token's way from the last one to the first."""
        first, last = self.stages[0].name, self.stages[-1].name
        token = HEADER_BYTES + ROW_BYTES
        back = 0.0 if first == last else self.deployment.link(last, first).mean_ms(token)
        return sum(self.stage_ms(1)) + sum(self.hops_ms(1)[1:-1]) + back + self.decide_ms(1)

    def decide_ms(self, rows: int) -> float:
        """Time of evaluation and decision at the draft server, 0 if they are elsewhere."""
        return (
            0.0 if self.deployment.roles.ends == "pipeline" else _verification_ms(self.draft, rows)
        )

    def round_ms(self, rows: int, drafted_ms: float, told: int) -> float:
        """Return the time from a decision to the return of the segment sent ``drafted_ms`` later.

        The decision's word, of ``told`` indices, goes out at once, to one stage after another, and
        the segment behind the last one; a stage begins when the segment is there and it has pruned.
        """
        words, sent_ms = self.told(told)
        first, *hops = self.hops_ms(rows)
        here = max(drafted_ms, sent_ms) + first
        for stage, word, stage_ms, hop in zip(
            self.stages, words, self.stage_ms(rows), hops, strict=True
        ):
            here = max(here, word + stage.times.prune) + stage_ms + hop
        return here

    def told(self, told: int) -> tuple[tuple[float, ...], float]:
        """Return when a decision's word of ``told`` indices reaches each stage, and when all have
        left the draft server's port."""
        found, sent, size = [], 0.0, HEADER_BYTES + 4 * told
        aside, name = self.deployment.wiring.central_transfers, self.draft.name
        for stage in self.stages:
            link = self.deployment.link_for(name, stage.name, unscheduled=aside)
            occupied = link.occupied_ms(size)
            if not self.deployment.roles.is_local(name, stage.name):
                sent = occupied = sent + occupied
            found.append(occupied + link.mean_delay_ms)
        return tuple(found), sent

    def ways(self, rows: int) -> tuple[tuple[float, float], ...]:
        """Return a segment's transfers, and the time of each at a port."""
        ways = zip(self._hops, self.hops_ms(rows), self._occupied_ms(rows), strict=True)
        return tuple((hop, self._ported(ends, occupied)) for ends, hop, occupied in ways)

    def report(self, number: int) -> tuple[float, float]:
        """Return the transfer of the report of a computed flight by a group that ends at the
        ``number``-th stage, and its time at a port."""
        ends, roles = (self.stages[number - 1].name, self.draft.name), self.deployment.roles
        link = self.deployment.link(*ends)
        states = self.deployment.service.reported(self.pipeline, number)
        occupied = link.occupied_ms(HEADER_BYTES + states * roles.row_bytes)
        return occupied + link.mean_delay_ms, self._ported(ends, occupied)

    def _ported(self, ends: tuple[str, str], occupied_ms: float) -> float:
        return 0.0 if self.deployment.roles.is_local(*ends) else occupied_ms

    def ported_ms(self, rows: int, told: int) -> float:
        """Return how long a round occupies the busier one of the draft server's two ports."""
        first, *_, last = self._occupied_ms(rows)
        return max(self.told(told)[1] + first, last)

    def prefill_ms(self, chunks: list[int]) -> float:
        """Return the time from a request's beginning to its first token, chunk after chunk."""
        return self.first_token_ms(chunks, [])[0]

    def first_token_ms(self, chunks: list[int], reading: list[float]) -> tuple[float, float]:
        """Return the same beside passes of the draft, and the time of the passes left after it.

        Links are in the timeline like stages. Only the prompt's last row is evaluated, at the draft
        server between two passes.
        """
        now, done = 0.0, 0
        for back, answered in zip(self._back_ms(chunks), answered_of(chunks), strict=True):
            while now < back and done < len(reading):
                now += reading[done]
                done += 1
            now = max(now, back) + self.decide_ms(answered)
        return now, sum(reading[done:])

    def _back_ms(self, chunks: list[int]) -> list[float]:
        sizes = [*zip(chunks, answered_of(chunks), strict=True)]
        links = self.links
        servers: list[list[float]] = []
        for each in sizes:
            first, *occupied = self._occupied_ms(*each)
            times = [first]
            for stage_ms, occupied_ms in zip(self.stage_ms(*each), occupied, strict=True):
                times += [stage_ms, occupied_ms]
            servers.append(times)
        delays = [links[0].mean_delay_ms]
        for link in links[1:]:
            delays += [0.0, link.mean_delay_ms]
        return timeline_ms(servers, [0.0, *delays])

    def _occupied_ms(self, rows: int, answered: int | None = None) -> list[float]:
        """Return how long a segment occupies each link, without the states that a draft reads where
        ids travel. ``answered`` is as for ``stage_ms``; of other rows only the states come back."""
        back = rows if answered is None or self.deployment.roles.reads_states else answered
        counts = [rows] * len(self.stages) + [back]
        return [
            link.occupied_ms(HEADER_BYTES + count * size)
            for link, count, size in zip(self.links, counts, self._row_bytes, strict=True)
        ]


def _verification_ms(placed: Placed, rows: int) -> float:
    return placed.times.evaluate(rows) + placed.times.decide


def chunks_of(prompt_tokens: int, chunk: int) -> list[int]:
    return split(prompt_tokens, -(-prompt_tokens // chunk), chunk)


def answered_of(chunks: Sequence[int]) -> list[int]:
    """Count the rows at which the target's token is taken, by chunk: only the prompt's last one."""
    return [0] * (len(chunks) - 1) + [1]


def timeline_ms(server_ms: Sequence[Sequence[float]], delay_ms: Sequence[float]) -> list[float]:
    """Compute when each segment is back if all may leave at 0 (FlowSpec, section 4.1, Naive PP).

    F[k][n] = max(F[k][n-1] + delay, F[k-1][n]) + c_n(k): a server (a stage; a busy link; the draft
    server's evaluation) takes a segment when it is there and the one before it is done.

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
