"""How long one segment's way takes where links and devices have nothing else to do.

Law of this file: durations, no probabilities. Jitter and losses enter with their means,
context counts as none.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from treepipe.core.tree import split
from treepipe.physics.timing import LinkTimes
from treepipe.scenario.deployment import HEADER_BYTES, Deployment, Placed
from treepipe.sim.theory.flowspec import timeline_ms


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

    def stage_ms(self, rows: int) -> list[float]:
        return [stage.times.stage(rows) for stage in self.stages]

    def hop_ms(self, link: LinkTimes, rows: int) -> float:
        """A segment's transfer."""
        return self._occupied_ms(link, rows) + link.mean_delay_ms

    def lap_ms(self, rows: int) -> float:
        """Through all stages and links (PipeDec, section 2.2, with the draft server's two hops)."""
        return sum(self.stage_ms(rows)) + sum(self.hop_ms(link, rows) for link in self.links)

    def decide_ms(self, rows: int) -> float:
        """Evaluation of returned rows, and the decision."""
        return self.draft.times.evaluate(rows) + self.draft.times.decide

    def round_ms(self, rows: int, drafted_ms: float, told: int) -> float:
        """The time from a decision to the return of the segment that leaves ``drafted_ms`` later.

        The decision's word goes out at once; a stage begins when the segment is there and it has
        pruned, which drafting hides if it takes longer.

        Args:
            told: indices in the word.
        """
        word = HEADER_BYTES + 4 * told
        links = self.links
        here = max(drafted_ms, links[0].occupied_ms(word)) + self.hop_ms(links[0], rows)
        for stage, link in zip(self.stages, links[1:], strict=True):
            broadcast = self.deployment.link(self.draft.name, stage.name)
            pruned = broadcast.occupied_ms(word) + broadcast.mean_delay_ms + stage.times.prune
            here = max(here, pruned) + stage.times.stage(rows) + self.hop_ms(link, rows)
        return here

    def prefill_ms(self, chunks: list[int]) -> float:
        """The time from a request's beginning to its first token: chunks one behind another.

        Links and the draft server are in the timeline like stages. Of a chunk only the last row
        is evaluated.
        """
        links = self.links
        servers: list[list[float]] = []
        for rows in chunks:
            times = [self._occupied_ms(links[0], rows)]
            for stage_ms, link in zip(self.stage_ms(rows), links[1:], strict=True):
                times += [stage_ms, self._occupied_ms(link, rows)]
            servers.append([*times, self.decide_ms(1)])
        delays = [links[0].mean_delay_ms]
        for link in links[1:]:
            delays += [0.0, link.mean_delay_ms]
        return timeline_ms(servers, [0.0, *delays, 0.0])[-1]

    def _occupied_ms(self, link: LinkTimes, rows: int) -> float:
        return link.occupied_ms(HEADER_BYTES + rows * (self.deployment.row_bytes + 8))


def chunks_of(prompt_tokens: int, chunk: int) -> list[int]:
    """Rows of a prompt's segments."""
    return split(prompt_tokens, -(-prompt_tokens // chunk), chunk)
