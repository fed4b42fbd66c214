"""Prompt lookup (Saxena): a draft without a model, which repeats earlier continuations of the text.

The draft proposes the tokens that followed the same last n tokens earlier in prompt and output, for
the longest n that occurs, backed off to shorter ones. SpecPipe, section 3.4, names n-grams as a
token source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from treepipe.core.protocol import DraftPass
from treepipe.core.scratch import Scratch
from treepipe.executor.models.draft_source import DraftSource, Opening, Passes

BACKOFF = 0.5
"""The weight of the shorter suffix's distribution, in counts, in each interpolation."""


class PromptLookupDraft(DraftSource):
    """A draft that counts; equal texts and paths always get equal answers."""

    def __init__(self, vocabulary: int, longest: int) -> None:
        """Prepare counts of suffixes of up to ``longest`` tokens."""
        self._vocabulary, self._longest = vocabulary, longest
        self._texts: dict[int, _Text] = {}

    @classmethod
    def opened(cls, opening: Opening) -> PromptLookupDraft:
        """Open the draft source ``ngram``."""
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
    """One session's committed tokens, and the tokens that followed every suffix in them."""

    def __init__(self, longest: int) -> None:
        self._tokens: list[int] = []
        self._scratch = Scratch[None]()
        # followers[n][suffix of n tokens] counts the tokens behind it; n = 0 counts all tokens.
        self._followers: list[dict[tuple[int, ...], Counter[int]]] = [
            {} for _ in range(longest + 1)
        ]

    def follow(self, order: DraftPass) -> list[tuple[int, ...]]:
        """Read the pass's committed tokens; return the token paths that it asks for."""
        followed = self._scratch.follow(order)
        for token in (*[node.token for node in followed.committed], *order.catch_up):
            self._read(token)
        return followed.asked

    def distribution(self, path: Sequence[int], vocabulary: int) -> npt.NDArray[np.float64]:
        """Distribution [vocabulary] after the committed tokens and ``path``, above 0 everywhere."""
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
