"""Recording acceptance of a draft whose answers depend on how much is verified.

An EAGLE head reads true states right below what was verified, each level further down its own
guess; prompt lookup counts what is verified only, and a mixture does what its parts do. So every
position of a text is answered for once per depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import DraftPass
from treepipe.executor.measure.calibration import (
    OFF_PATH_STEPS,
    SESSION,
    AcceptanceRecorder,
    ModelRecorder,
    Strays,
    Texts,
    WholeModel,
    Written,
)
from treepipe.executor.measure.judging import DIGITS, candidates_of
from treepipe.executor.sources import SourceSettings, open_source
from treepipe.profiles.pool_file import Floats, Prompt, Table
from treepipe.scenario.computing import ONE_CORE

Tokens = npt.NDArray[np.int64]


class SourceAnswer(NamedTuple):
    """Candidates in descending probability, and the log probabilities of the whole vocabulary."""

    tokens: Tokens
    log_probs: Floats
    whole: Floats


class SourceRecorder:
    """A draft asked for every token once per depth."""

    def __init__(self, settings: SourceSettings, texts: Texts) -> None:
        directory = None if settings.model is None else settings.model.directory.resolve()
        self.name = settings.section.drafter.called_of("" if directory is None else directory.name)
        self.settings, self._texts = settings, texts
        target, entries = texts.target, 2 * texts.longest
        self.source = open_source(settings, target, target.vocabulary, entries, ONE_CORE)
        self._depths = settings.section.drafter.unverified_depths

    def record(self, whole: WholeModel, written: Written, strays: Strays) -> Prompt:
        """The draft's answers for each of the text's tokens, by depth."""
        prompt, text = written.prompt, written.text
        self.source.open(SESSION)
        self._show_states(whole, [*prompt, *text])
        levels = range(self._depths + 1)
        judges = [self._texts.judge(written.number, depth) for depth in levels]
        by_depth: list[list[tuple[Floats, int]]] = [[] for _ in levels]
        unread = list(prompt)
        for first in range(len(text)):
            found = self._chain(unread, text[first : first + len(levels)])
            unread = [text[first]]
            for depth, answer in enumerate(found):
                place, judge = first + depth, judges[depth]
                rank = written.rank(judge, place, answer.whole, answer.tokens)
                by_depth[depth].append((answer.log_probs, rank))
            if first % 2 == 0:
                self._stray(found, text[first], strays)
        self.source.close(SESSION)
        # Near a text's beginning no state is further back than the prompt's last one.
        filled = [
            [by_depth[min(depth, place)][max(place - depth, 0)] for place in range(len(text))]
            for depth in levels
        ]
        known, *guessed = (
            Table(np.array([vector for vector, _ in answers]), [rank for _, rank in answers])
            for answers in filled
        )
        return Prompt(known, guessed)

    def _show_states(self, whole: WholeModel, tokens: Sequence[int]) -> None:
        """Show the target's states of all tokens to a draft that reads them."""
        observe = getattr(self.source, "observe", None)
        if observe is None:
            return
        whole.stage.open(0)
        hidden = whole.ends.embed(tokens)
        states = whole.stage.forward(0, hidden, range(len(tokens)), None)
        whole.stage.close(0)
        observe(SESSION, whole.ends.features(states))

    def _chain(self, unread: Sequence[int], tokens: Sequence[int]) -> list[SourceAnswer]:
        """Answers for each of the tokens when only what is before the first one is verified."""
        order = DraftPass(0, tuple(unread), (), (), True, 1)
        found = []
        for depth, token in enumerate(tokens):
            found.append(self._ask(order))
            parent = (depth - 1 if depth else NO_PARENT,)
            order = DraftPass(0, (), (token,), parent, False, 1)
        return found

    def _stray(self, chain: Sequence[SourceAnswer], truth: int, strays: Strays) -> None:
        """A wrong sibling of the chain's first token and its continuation, as scratch nodes behind
        those of the chain (whose last token was not fed)."""
        slots, answer, parent = len(chain) - 1, chain[0], NO_PARENT
        wrong = strays.draw(answer.tokens, answer.log_probs, truth)
        for step in range(OFF_PATH_STEPS):
            answer = self._ask(DraftPass(0, (), (wrong,), (parent,), False, 1))
            strays.note(step + 1, answer.log_probs[None])
            wrong, parent = strays.draw(answer.tokens, answer.log_probs), slots + step

    def _ask(self, order: DraftPass) -> SourceAnswer:
        log_probs = self.source.log_probs(SESSION, order)
        tokens, rows = candidates_of(log_probs)
        return SourceAnswer(tokens[0], np.round(rows[0], DIGITS), log_probs[0].numpy())


def recorder_of(settings: SourceSettings, texts: Texts) -> AcceptanceRecorder:
    """The draft that these settings open, ready to be recorded."""
    recorder = SourceRecorder if settings.section.drafter.unverified_depths else ModelRecorder
    return recorder(settings, texts)
