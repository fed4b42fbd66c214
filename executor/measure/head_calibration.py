"""Recording acceptance of a draft that reads the target's states (an EAGLE head).

Its answer for a token depends on how far back the last known state is: right below what was
verified it reads true states, each level further down it reads its own guess. So every position of
a text is answered for once per depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import DraftPass
from treepipe.executor.checkpoint import CheckpointSource
from treepipe.executor.eagle import EagleDraft
from treepipe.executor.measure.calibration import (
    DIGITS,
    OFF_PATH_STEPS,
    Strays,
    Texts,
    WholeModel,
    candidates_of,
    rank_of,
)
from treepipe.profiles.pool_file import Floats, Prompt, Table

DEPTHS = 7
"""Levels below what was verified that are recorded; deeper ones answer like the last."""
SESSION = 1
Tokens = npt.NDArray[np.int64]


class HeadAnswer(NamedTuple):
    """Candidates in descending probability."""

    tokens: Tokens
    log_probs: Floats


class HeadRecorder:
    """An EAGLE head that drafts, asked for every token once per depth."""

    def __init__(self, directory: Path, name: str, texts: Texts) -> None:
        self.name = name
        self._draft = EagleDraft(CheckpointSource(directory), texts.target, 2 * texts.longest)

    def record(
        self, whole: WholeModel, prompt: Sequence[int], text: Sequence[int], strays: Strays
    ) -> Prompt:
        """The head's answers for each of the text's tokens, by depth."""
        self._show_states(whole, [*prompt, *text])
        by_depth: list[list[tuple[Floats, int]]] = [[] for _ in range(DEPTHS + 1)]
        unread = list(prompt)
        for first in range(len(text)):
            found = self._chain(unread, text[first : first + DEPTHS + 1])
            unread = [text[first]]
            for depth, answer in enumerate(found):
                rank = rank_of(answer.tokens, text[first + depth])
                by_depth[depth].append((answer.log_probs, rank))
            if first % 2 == 0:
                self._stray(found, text[first], strays)
        self._draft.close(SESSION)
        # Near a text's beginning no state is further back than the prompt's last one.
        filled = [
            [by_depth[min(depth, place)][max(place - depth, 0)] for place in range(len(text))]
            for depth in range(DEPTHS + 1)
        ]
        known, *guessed = (
            Table(np.array([vector for vector, _ in answers]), [rank for _, rank in answers])
            for answers in filled
        )
        return Prompt(known, guessed)

    def _show_states(self, whole: WholeModel, tokens: Sequence[int]) -> None:
        """Open the draft's session with the target's states of all tokens."""
        whole.stage.open(0)
        hidden = whole.ends.embed(tokens)
        states = whole.stage.forward(0, hidden, range(len(tokens)), None)
        whole.stage.close(0)
        self._draft.open(SESSION)
        self._draft.observe(SESSION, whole.ends.features(states))

    def _chain(self, unread: Sequence[int], tokens: Sequence[int]) -> list[HeadAnswer]:
        """Answers for each of the tokens when only what is before the first one is verified."""
        order = DraftPass(0, tuple(unread), (), (), True, 1)
        found = []
        for depth, token in enumerate(tokens):
            found.append(self._ask(order))
            parent = (depth - 1 if depth else NO_PARENT,)
            order = DraftPass(0, (), (token,), parent, False, 1)
        return found

    def _stray(self, chain: Sequence[HeadAnswer], truth: int, strays: Strays) -> None:
        """A wrong sibling of the chain's first token and its continuation, as scratch nodes behind
        those of the chain (whose last token was not fed)."""
        slots, answer, parent = len(chain) - 1, chain[0], NO_PARENT
        wrong = strays.draw(answer.tokens, answer.log_probs, truth)
        for step in range(OFF_PATH_STEPS):
            answer = self._ask(DraftPass(0, (), (wrong,), (parent,), False, 1))
            strays.note(step + 1, answer.log_probs[None])
            wrong, parent = strays.draw(answer.tokens, answer.log_probs), slots + step

    def _ask(self, order: DraftPass) -> HeadAnswer:
        tokens, rows = candidates_of(self._draft.log_probs(SESSION, order))
        return HeadAnswer(tokens[0], np.round(rows[0], DIGITS))
