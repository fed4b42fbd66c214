"""Chains drafted for every outcome that the verification under way may have (``ssd``, Saguaro).

(SSD, arXiv 2603.03251, and its code.) While the target verifies a chain of ``gamma`` tokens, the
draft reads the root and the chain in one pass, guesses at each of their ``gamma`` + 1 places the
``fan_out`` likeliest tokens that the target may give instead of the next one, and drafts a chain
behind each guess, all of them side by side. If the outcome was guessed (a hit) the next chain is
there when the target is back. If not, the target verifies the root alone, or, with
``jit_speculate``, waits until a chain is drafted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

from treepipe.core.decoding.keys import AheadKeys
from treepipe.core.decoding.tree_decoding import TreeDecoding
from treepipe.core.protocol import Command, Drafted, DraftPass, Returned
from treepipe.core.registry import key
from treepipe.core.system import Block, Load, ScheduleContext, System


@dataclass(frozen=True)
class OutcomeKeys(AheadKeys):
    """The defaults of the authors' code."""

    gamma: int = key(7, "tokens of a chain; StarSD's depth d", least=1)
    fan_out: int = key(3, "F, guesses of the target's token at each place of a chain", least=1)
    jit_speculate: bool = key(False, "draft a chain behind an outcome that was not guessed")

    def candidates(self) -> Mapping[str, int]:
        """One more is asked for, since the next token of the chain is no guess."""
        return {"fan_out": self.fan_out + 1}


@dataclass(slots=True)
class _Outcome:
    """A guess: so many tokens of the chain are accepted, and this is the target's own behind them.

    Attributes:
        node: the draft's scratch node of the last token that it has read of it.
        chain: tokens drafted behind it, with their log probabilities.
    """

    accepted: int
    token: int
    node: int
    chain: list[tuple[int, float]] = field(default_factory=list)


class OutcomesGuessed(TreeDecoding):
    """A request decoded chain by chain; the draft holds the root as its first scratch node."""

    def __init__(self, context: ScheduleContext, keys: OutcomeKeys) -> None:
        super().__init__(context.session, keys.prefill_chunk, keeps=context.keeps)
        self._keys, self._drawn = keys, context.drawn
        self._chain: list[tuple[int, float]] = []  # below the root
        self._outcomes: list[_Outcome] = []
        self._growing: list[_Outcome] | None = None  # read by the pass under way; None: no guesses
        self._kept: int | None = 0  # scratch nodes that the next pass commits, alone; None: all
        self._nodes = 0  # scratch nodes behind the pass under way

    def _begin(self, root_token: int) -> list[Command]:
        """Read the prompt; the first chain follows."""
        self._flying.open_round(root_token)
        prompt = self._pending.unread[:-1]
        order = DraftPass.over_committed(self._request.ticket(), prompt, 0)
        return [self._pending.ask(order)]

    def _pass(self, tokens: Sequence[int], parents: Sequence[int], top_k: int) -> Command:
        keep, accepted = None, self._kept or 0
        if self._kept is not None:
            keep, self._kept, self._nodes = tuple(range(self._kept)), None, 0
        self._nodes += len(tokens)
        ticket, drawn = self._request.ticket(), self._drawn and top_k == 1
        read = tuple(tokens), tuple(parents)
        return self._pending.ask(
            DraftPass(ticket, (), *read, False, top_k, keep, accepted, drawn=drawn)
        )

    # --- a chain, and its outcomes ---------------------------------------------------------------

    def _drafted(self, event: Drafted) -> list[Command]:
        if not self._flying.opened:
            return self._chained([*zip(event.tokens, event.log_probs, strict=True)])
        if self._growing is None:
            self._outcomes = growing = self._guessed(event)
        else:
            growing = []
            for outcome, tokens, log_probs in zip(
                self._growing, event.tokens, event.log_probs, strict=True
            ):
                if log_probs[0] > -inf:
                    outcome.chain.append((int(tokens[0]), float(log_probs[0])))
                    growing.append(outcome)
        self._growing = [each for each in growing if len(each.chain) < self._keys.gamma]
        return [self._grow(self._growing)] if self._growing else []

    def _chained(self, answers: Sequence[Any]) -> list[Command]:
        """Draft a chain behind the root, token by token; ``answers`` are those of the last one."""
        chain, ended = self._chain, False
        for tokens, log_probs in answers:
            ended = log_probs[0] == -inf
            chain += [] if ended else [(int(tokens[0]), float(log_probs[0]))]
        if ended or len(chain) == self._keys.gamma:
            self._kept = 0  # they are read again, with the root
            return self._verify()
        last = chain[-1][0] if chain else self._flying.tree.tokens[0]
        return [self._pass((last,), (len(chain) - 1,), 1)]

    def _verify(self) -> list[Command]:
        """Feed root and chain, and read them for guesses."""
        flying = self._flying
        flying.append_chain(self._chain)
        rows = len(flying.tree)
        self._growing = None
        guesses = self._pass(flying.tree.tokens, range(-1, rows - 1), self._keys.fan_out + 1)
        return [flying.feed(rows, None), guesses]

    def _guessed(self, event: Drafted) -> list[_Outcome]:
        """Return the likeliest outcomes at each place, without the chain's own next token."""
        found, following = list[_Outcome](), [*(token for token, _ in self._chain), None]
        for place, (row, log_probs) in enumerate(zip(event.tokens, event.log_probs, strict=True)):
            likely = [int(t) for t, log_prob in zip(row, log_probs, strict=True) if log_prob > -inf]
            others = [token for token in likely if token != following[place]]
            found += [_Outcome(place, token, place) for token in others[: self._keys.fan_out]]
        return found

    def _grow(self, outcomes: Sequence[_Outcome]) -> Command:
        """Draft one token more behind each of these."""
        first = self._nodes
        tokens = [each.chain[-1][0] if each.chain else each.token for each in outcomes]
        order = self._pass(tokens, [each.node for each in outcomes], 1)
        for node, each in enumerate(outcomes, first):
            each.node = node
        return order

    # --- the target's answer ---------------------------------------------------------------------

    def _returned(self, event: Returned) -> list[Command]:
        flying = self._flying
        walk = flying.judged(event)
        commands = flying.commit(walk)
        flying.record_round()
        if self.done:
            return commands
        word = flying.drop_round(walk, lock_step=False)
        flying.open_round(walk.next_token)
        self._kept = len(walk.accepted)
        found = (self._kept - 1, walk.next_token)
        hits = [each for each in self._outcomes if (each.accepted, each.token) == found]
        self._chain, self._outcomes = [token for each in hits for token in each.chain], []
        waits = self._keys.jit_speculate and not hits
        return [word, *commands, *(self._chained(()) if waits else self._verify())]


def _make(parameters: OutcomeKeys, context: ScheduleContext) -> OutcomesGuessed:
    return OutcomesGuessed(context, parameters)


def _tokens(parameters: OutcomeKeys, stages: int) -> int:
    return parameters.gamma + 1


def _scratch(parameters: OutcomeKeys, stages: int) -> int:
    """Count the root, its chain, and a chain behind each guess."""
    rows = parameters.gamma + 1
    return rows + parameters.gamma * rows * parameters.fan_out


def _grid(load: Load) -> Sequence[Block]:
    return ({"gamma": (2, 4, 7), "fan_out": (1, 3), "jit_speculate": (False, True)},)


SYSTEMS = (
    System(
        name="ssd",
        year=2026,
        order=14,
        source="SSD, arXiv 2603.03251",
        summary="chains drafted for each outcome of a verification",
        parameters=OutcomeKeys,
        make=_make,
        tree_tokens=_tokens,
        segment_tokens=_tokens,
        scratch_tokens=_scratch,
        drawn=True,
        chains=True,
        grid=_grid,
    ),
)
