"""Prompt lookup: a draft without a model, which continues as the text itself did before.

(SpecPipe, section 3.4, names n-grams as a token source; the idea is Saxena's prompt lookup.) After
the last n tokens the draft proposes what followed the same n tokens earlier in prompt and output,
for the longest n that occurs, backed off to shorter ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from treepipe.core.protocol import DraftPass
from treepipe.core.scratch import Scratch
from treepipe.executor.draft_source import DraftSource, Opening, Passes

BACKOFF = 0.5
"""Counts that the shorter suffix's distribution weighs, in every step of the interpolation."""


class PromptLookupDraft(DraftSource):
    """Proposes by counting; the same text and path always get the same answer."""

    def __init__(self, vocabulary: int, longest: int) -> None:
        """Args: ``longest``: most tokens of a suffix that is looked up."""
        self._vocabulary, self._longest = vocabulary, longest
        self._texts: dict[int, _Text] = {}

    @classmethod
    def opened(cls, opening: Opening) -> PromptLookupDraft:
        """The draft source ``ngram``."""
        return cls(opening.vocabulary, opening.keys.ngram)

    def open(self, session: int) -> None:
        self._texts[session] = _Text(self._longest)

    def close(self, session: int) -> None:
        self._texts.pop(session, None)

    def log_probs_batch(self, passes: Passes) -> list[torch.Tensor]:
        return [self._log_probs(session, order) for session, order in passes]

    def _log_probs(self, session: int, order: DraftPass) -> torch.Tensor:
        text = self._texts[session]
        paths = text.follow(order)
        rows = np.stack([text.distribution(path, self._vocabulary) for path in paths])
        return torch.from_numpy(np.log(rows))


class _Text:
    """One session's committed tokens, and what followed every suffix in them."""

    def __init__(self, longest: int) -> None:
        self._tokens: list[int] = []
        self._scratch = Scratch[None]()
        # followers[n][suffix of n tokens] counts the tokens behind it; n = 0 counts all tokens.
        self._followers: list[dict[tuple[int, ...], Counter[int]]] = [
            {} for _ in range(longest + 1)
        ]

    def follow(self, order: DraftPass) -> list[tuple[int, ...]]:
        """Read what the pass commits; returns the token paths that it asks about."""
        followed = self._scratch.follow(order)
        for token in (*[node.token for node in followed.committed], *order.catch_up):
            self._read(token)
        return followed.asked

    def distribution(self, path: Sequence[int], vocabulary: int) -> npt.NDArray[np.float64]:
        """[vocabulary] behind the committed tokens and ``path``; every token has some share."""
        longest = len(self._followers) - 1
        context = [*self._tokens[-longest:], *path][-longest:]
        p = np.full(vocabulary, 1.0 / vocabulary)
        for count in range(min(longest, len(context)) + 1):
            suffix = tuple(context[len(context) - count :])
            followers = self._followers[count].get(suffix)
            if followers is None:
                break  # a longer suffix cannot occur either
            p *= BACKOFF
            for token, times in followers.items():
                p[token] += times
            p /= p.sum()
        return p

    def _read(self, token: int) -> None:
        for count, followers in enumerate(self._followers):
            if count <= len(self._tokens):
                suffix = tuple(self._tokens[len(self._tokens) - count :])
                followers.setdefault(suffix, Counter())[token] += 1
        self._tokens.append(token)
