"""A draft that draws its candidates and keeps its distributions for the verification rules.

The rejection rule judges a drawn child by the distribution that it was drawn from (SpecInfer,
section 5.2), and the adaptive rule compares draft and target.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from treepipe.core.protocol import Drafted, DraftPass
from treepipe.core.requests import numbered
from treepipe.core.scratch import Scratch
from treepipe.core.verification import Sampling, draw_without_replacement, target_distribution
from treepipe.executor.models.draft_source import DraftSource, Passes, best_candidates


def stream(seed: int, session: int, concern: int) -> list[int]:
    """Seed of a session's random numbers for a concern; a preempted request has a new one."""
    again, number = numbered(session)
    return [seed, number, concern, *[again] * (again > 0)]


class RememberingDraft(DraftSource):
    """Another draft that remembers its distributions."""

    def __init__(self, source: DraftSource, sampling: Sampling, seed: int) -> None:
        self._source, self._sampling, self._seed = source, sampling, seed
        if hasattr(source, "observe"):
            self.observe = source.observe
        self._memories: dict[int, _Memory] = {}

    def open(self, session: int) -> None:
        self._source.open(session)
        self._memories[session] = _Memory(np.random.default_rng(stream(self._seed, session, 1)))

    def close(self, session: int) -> None:
        self._source.close(session)
        self._memories.pop(session, None)

    def log_probs_batch(self, passes: Passes) -> list[torch.Tensor]:
        return self._source.log_probs_batch(passes)

    def draft_batch(self, passes: Passes) -> list[Drafted]:
        """Run the passes; return candidates in the order drawn, or the most probable ones."""
        found = self.log_probs_batch(passes)
        return [self._answer(*each, rows) for each, rows in zip(passes, found, strict=True)]

    def _answer(self, session: int, order: DraftPass, log_probs: torch.Tensor) -> Drafted:
        memory = self._memories[session]
        rows = [
            target_distribution(row, self._sampling) if np.isfinite(row).any() else np.exp(row)
            for row in log_probs.cpu().numpy()  # a row of -inf: nothing is proposed there
        ]
        memory.remember(order, rows)
        if not order.drawn:
            return best_candidates(order, log_probs)
        drawn = [draw_without_replacement(q, order.top_k, memory.rng) for q in rows]
        tokens = [[*row, *[0] * (order.top_k - len(row))] for row in drawn]
        found = [
            [*np.log(q[row]), *[-np.inf] * (order.top_k - len(row))]
            for q, row in zip(rows, drawn, strict=True)
        ]
        return Drafted(order.ticket, tokens, found)

    def distribution(
        self, session: int, text: Sequence[int], path: tuple[int, ...]
    ) -> npt.NDArray[np.float64] | None:
        """Return the distribution [vocabulary] at the node below ``text`` (prompt and output, the
        root last); None without a pass there. Texts only grow, so distributions off this text are
        dropped."""
        return self._memories[session].find(text, path)


class _Memory:
    """One session's distributions, by the number of tokens read and the token path below them.

    A context's distributions stay as long as the text may lead to one of its nodes, since a tree is
    verified while the draft reads on.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self._scratch = Scratch[None]()
        self._contexts: dict[int, dict[tuple[int, ...], npt.NDArray[np.float64]]] = {}
        self._length = 0

    def remember(self, order: DraftPass, rows: Sequence[npt.NDArray[np.float64]]) -> None:
        paths = self._scratch.follow(order).asked
        if not order.top_k:
            return  # it only reads
        context = self._contexts.setdefault(self._scratch.read, {})
        context.update(zip(paths, rows, strict=True))

    def find(self, text: Sequence[int], path: tuple[int, ...]) -> npt.NDArray[np.float64] | None:
        if len(text) > self._length:
            self._forget(text)
        for read, context in sorted(self._contexts.items(), reverse=True):
            found = context.get((*text[read:], *path))
            if found is not None:
                return found
        return None

    def _forget(self, text: Sequence[int]) -> None:
        """Keep the distributions at the text's last token or below it."""
        self._length = len(text)
        for read, context in [*self._contexts.items()]:
            above = tuple(text[read:])
            kept = {path: q for path, q in context.items() if path[: len(above)] == above}
            self._contexts[read] = kept
            if not kept:
                del self._contexts[read]
