"""How long one segment's way takes where links and devices have nothing else to do.

Law of this file: durations, no probabilities. Jitter and losses enter with their means,
context counts as none.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from treepipe.core.tree import split
from treepipe.physics.timing import LinkTimes
from treepipe.scenario.deployment import HEADER_BYTES, ROW_BYTES, Deployment, Placed
from treepipe.sim.theory.flowspec import timeline_ms
from treepipe.sim.theory.paired import paired_timeline_ms


@dataclass(frozen=True, slots=True)
class Passage:
    """The way from the draft server through a pipeline and back; all times in milliseconds."""

    deployment: Deployment
    pipeline: int = 0

    @property
    def draft(self) -> Placed:
        return self.deployment.drafts[0]

    @property
    def stages(self) -> tuple[Placed, ...]:
        return self.deployment.pipelines[self.pipeline]

    @property
    def links(self) -> list[LinkTimes]:
        """N + 1 of them: to the first stage, between the stages, back to the draft server."""
        names = [self.draft.name, *(stage.name for stage in self.stages), self.draft.name]
        return [self.deployment.link(a, b) for a, b in itertools.pairwise(names)]

    def passes_ms(self, rows: int) -> list[float]:
        """The time of every stage's layers."""
        return [stage.times.stage(rows) for stage in self.stages]

    def verify_ms(self, rows: int) -> float:
        """Evaluation and decision at the last stage, if they are there."""
        here = self.deployment.ends == "pipeline"
        return _verification_ms(self.stages[-1], rows) if here else 0.0

    def stage_ms(self, rows: int, answered: int | None = None) -> list[float]:
        """The time of every stage, the last one's with what it verifies.

        Args: ``answered``: rows that the target's token is taken at; None: all.
        """
        *before, last = self.passes_ms(rows)
        return [*before, last + self.verify_ms(rows if answered is None else answered)]

    def hops_ms(self, rows: int) -> list[float]:
        """A segment's transfers: to the first stage, between the stages, back."""
        pairs = zip(self.links, self._occupied_ms(rows), strict=True)
        return [occupied + link.mean_delay_ms for link, occupied in pairs]

    def lap_ms(self, rows: int) -> float:
        """Through all stages and links (PipeDec, section 2.2, with the draft server's two hops)."""
        return sum(self.stage_ms(rows)) + sum(self.hops_ms(rows))

    def decide_ms(self, rows: int) -> float:
        """Evaluation of returned rows and the decision at the draft server, if they are there."""
        return 0.0 if self.deployment.ends == "pipeline" else _verification_ms(self.draft, rows)

    @property
    def marker_ms(self) -> float:
        """The draft server's decision on a flight that holds nothing."""
        return 0.0 if self.deployment.ends == "pipeline" else self.draft.times.decide

    def round_ms(self, rows: int, drafted_ms: float, told: int) -> float:
        """The time from a decision to the return of the segment that leaves ``drafted_ms`` later.

        The decision's word goes out at once; a stage begins when the segment is there and it has
        pruned, which drafting hides if it takes longer.

        Args:
            told: indices in the word.
        """
        word = _word_bytes(told)
        first, *hops = self.hops_ms(rows)
        here = max(drafted_ms, self.links[0].occupied_ms(word)) + first
        passes = zip(self.stages, self._broadcast, self.stage_ms(rows), hops, strict=True)
        for stage, told_by, stage_ms, hop in passes:
            pruned = told_by.occupied_ms(word) + told_by.mean_delay_ms + stage.times.prune
            here = max(here, pruned) + stage_ms + hop
        return here

    def word_ms(self, told: int) -> float:
        """A transfer of a decision's word to a stage, the slowest one. Args: ``told``: indices."""
        return max(
            link.occupied_ms(_word_bytes(told)) + link.mean_delay_ms for link in self._broadcast
        )

    @property
    def _broadcast(self) -> list[LinkTimes]:
        """The links from the draft server to every stage."""
        return [self.deployment.link(self.draft.name, stage.name) for stage in self.stages]

    def prefill_ms(self, chunks: list[int]) -> float:
        """The time from a request's beginning to its first token: chunks one behind another."""
        return self.first_token_ms(chunks, [])[0]

    def first_token_ms(self, chunks: list[int], reading: list[float]) -> tuple[float, float]:
        """The same beside passes of the draft, and the time of those that are left then.

        Links are in the timeline like stages. Of a chunk only the last row is evaluated, at the
        draft server between two passes.
        """
        now, done = 0.0, 0
        for back in self._back_ms(chunks):
            while now < back and done < len(reading):
                now += reading[done]
                done += 1
            now = max(now, back) + self.decide_ms(1)
        return now, sum(reading[done:])

    def _back_ms(self, chunks: list[int]) -> list[float]:
        """When each chunk is back at the draft server."""
        if self.deployment.central_transfers:
            passes = [self.stage_ms(rows, 1) for rows in chunks]
            return paired_timeline_ms(passes, [self.hops_ms(rows) for rows in chunks])
        links = self.links
        servers: list[list[float]] = []
        for rows in chunks:
            first, *occupied = self._occupied_ms(rows)
            times = [first]
            for stage_ms, occupied_ms in zip(self.stage_ms(rows, 1), occupied, strict=True):
                times += [stage_ms, occupied_ms]
            servers.append(times)
        delays = [links[0].mean_delay_ms]
        for link in links[1:]:
            delays += [0.0, link.mean_delay_ms]
        return timeline_ms(servers, [0.0, *delays])

    def _occupied_ms(self, rows: int) -> list[float]:
        """How long a segment keeps each link busy; the states that an EAGLE head reads are left
        out where ids travel."""
        deployment, (first, *between, last) = self.deployment, self.links
        outer = HEADER_BYTES + rows * (deployment.outer_row_bytes + ROW_BYTES)
        inner = HEADER_BYTES + rows * (deployment.row_bytes + ROW_BYTES)
        between_ms = [link.occupied_ms(inner) for link in between]
        return [first.occupied_ms(outer), *between_ms, last.occupied_ms(outer)]


def _word_bytes(told: int) -> int:
    return HEADER_BYTES + 4 * told


def _verification_ms(placed: Placed, rows: int) -> float:
    return placed.times.evaluate(rows) + placed.times.decide


def chunks_of(prompt_tokens: int, chunk: int) -> list[int]:
    """Rows of a prompt's segments."""
    return split(prompt_tokens, -(-prompt_tokens // chunk), chunk)
