"""Rules asked along the walk: the real desks, schedules and verifier, without time or models."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.worlds.any_section import sections
from tests.worlds.examples import examples
from treepipe.core.protocol import Drafted, DraftPass, Offer, Started
from treepipe.core.schedules import systems
from treepipe.core.verification import DRAWN, RULES, draw
from treepipe.executor.models.draft_memory import RememberingDraft, stream
from treepipe.executor.models.draft_source import DraftSource, Passes, best_candidates
from treepipe.executor.models.source_settings import judged_sampling
from treepipe.executor.models.verifier import Verifier
from treepipe.scenario.schema import SamplingSection, ScheduleSection
from treepipe.testing.hashed_lm import VOCABULARY, Choose, any_order, noisy, target
from treepipe.testing.timeless_world import TimelessRequest, TimelessWorld

PROMPT, WANTED, SEED = (3, 1, 4), 24, 5
DRAFT = noisy(0.7)
LAYERED = [system.name for system in systems().values() if "width" in system.keys]


class Answers(DraftSource):
    """A draft that answers what the world has set."""

    rows = torch.empty(0)

    def open(self, session: int) -> None:
        pass

    def close(self, session: int) -> None:
        pass

    def log_probs_batch(self, passes: Passes) -> list[torch.Tensor]:
        return [self.rows for _ in passes]


class Checked(RememberingDraft):
    """Every distribution that is asked for at a node with children is the draft's there."""

    asked = 0

    def distribution(self, session: int, text: Sequence[int], path: tuple[int, ...]) -> Any:
        found = super().distribution(session, text, path)
        if found is not None:
            logits = DRAFT([*text, *path])
            expected = np.exp(logits - logits.max())
            np.testing.assert_allclose(found, expected / expected.sum())
            self.asked += 1
        contexts = self._memories[session]._contexts.values()
        assert all(len(p) < 40 for context in contexts for p in context), "others are forgotten"
        return found


class JudgingWorld(TimelessWorld):
    """The draft servers take the target's tokens, by a rule."""

    def __init__(self, stages: int, section: SamplingSection, choose: Choose) -> None:
        super().__init__([stages], target, DRAFT, choose)
        self._source = Answers()
        self.memory = Checked(self._source, judged_sampling(section), SEED)
        ends: Any = SimpleNamespace(
            logits=lambda hidden: hidden,
            next_tokens=lambda hidden: tuple(hidden.argmax(1).tolist()),
        )
        remembers = self.memory if RULES[section.rule].needs_draft else None
        self._verifier = Verifier(ends, section, SEED, remembers)

    def entered(self, session: int, request: TimelessRequest) -> None:
        super().entered(session, request)
        self._verifier.open(session, request.prompt)
        self.memory.open(session)

    def answer(self, session: int, order: DraftPass, paths: list[list[int]]) -> Drafted:
        logits = np.stack([DRAFT(path) for path in paths]) if order.top_k else np.zeros((0, 7))
        self._source.rows = torch.from_numpy(logits).log_softmax(-1)
        if self._verifier._draft is not None:
            return self.memory.draft(session, order)
        return best_candidates(order, self._source.rows)

    def _end(self, number: int) -> None:
        flight = self.servers[number].flight
        for segment in flight.segments if flight is not None else ():
            request = self.requests[segment.session]
            if request.reason is not None or not segment.tokens:
                continue
            offers: Sequence[Offer | None] = [Offer((), 0, ())]
            above = request.committed
            if segment.committed:
                above = [*PROMPT, *request.text][: segment.positions[-1] + 1]
            else:
                offers = request.schedule.offers(segment, children=True)
            paths = [[*above, *(offer.path if offer else ())] for offer in offers]
            rows = torch.from_numpy(np.stack([target(path) for path in paths]))
            answers = self._verifier.next_tokens(segment.session, rows, offers)
            self.pipelines[0].answers[segment.session, segment.ticket] = answers
        super()._end(number)

    def carry_out(self, number: int, orders: Any) -> None:
        super().carry_out(number, orders)
        for session, tokens in orders.emitted:
            self._verifier.emitted(session, tokens)


def decode(
    name: str, stages: int, keys: dict[str, Any], section: SamplingSection, seed: int
) -> tuple[list[int], JudgingWorld]:
    chosen = ScheduleSection.model_validate({"name": name, **keys})
    world = JudgingWorld(stages, section, any_order(seed))
    schedule = chosen.choose(drawn=section.rule in DRAWN)(1, stages)
    world.open(1, schedule, Started(PROMPT, WANTED))
    world.run()
    return world.text(1), world


def softmax(logits: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.exp(logits - logits.max())
    return found / found.sum()


@pytest.mark.parametrize("name", LAYERED)
@pytest.mark.parametrize(("stages", "width", "children"), [(3, 1, 1), (8, 1, 1), (2, 16, 2)])
@examples(4)
@given(st.integers(0, 2**32))
def test_the_relaxed_rule_judges_every_row(
    name: str, stages: int, width: int, children: int, seed: int
) -> None:
    """However many steps lie between a layer's draft and its verification: token for token, and
    round for round, as a loop without a pipeline has it."""
    section = SamplingSection(rule="relaxed_top_p", relaxed_top_p=0.8)
    text, expected, misses = [*PROMPT, int(target([*PROMPT]).argmax())], list[int](), 0
    while len(text) < len(PROMPT) + WANTED:
        p, order = softmax(target(text)), np.argsort(-target(text), kind="stable")
        inside = order[: int(np.searchsorted(np.cumsum(p[order]), 0.8)) + 1]
        drafted = np.argsort(-DRAFT(text), kind="stable")[:children].tolist()
        taken = [token for token in drafted if token in inside]
        text.append(taken[0] if taken else int(p.argmax()))
        misses += text[-1] not in drafted
    expected = text[len(PROMPT) :]
    keys = {"width": width, "children": children}
    found, world = decode(name, stages, keys, section, seed)
    assert found == expected
    rounds = world.requests[1].schedule.rounds
    assert len(rounds) in (misses, misses + 1), "a last miss begins no round"


@pytest.mark.parametrize("name", systems())
@examples(12)
@given(sections, st.integers(1, 5), st.integers(0, 2**32))
def test_a_token_takes_one_draw_whatever_drafts(
    name: str, section: dict[str, Any], stages: int, seed: int
) -> None:
    """No row beside the walk is judged, so a sampled text is the one that plain decoding draws."""
    rng, text = np.random.default_rng(stream(SEED, 1, 0)), [*PROMPT]
    while len(text) < len(PROMPT) + WANTED:
        text.append(draw(softmax(target(text) / 0.7), rng))
    sampling = SamplingSection(temperature=0.7)
    found, _ = decode(name, stages, {**section, "prefill_chunk": 8}, sampling, seed)
    assert found == text[len(PROMPT) :]


@pytest.mark.parametrize(
    ("name", "rule"),
    [(s.name, "rejection") for s in systems().values() if s.drawn]
    + [(s.name, "adaptive") for s in systems().values() if s.chains]
    + [(s.name, "block") for s in systems().values() if s.chains and not s.in_lock_step],
)
@examples(8)
@given(st.integers(1, 5), st.integers(0, 2**32))
def test_rules_are_given_what_the_draft_answered(
    name: str, rule: str, stages: int, seed: int
) -> None:
    stages += systems()[name].in_lock_step  # in a step of one stage nothing is drafted in time
    text, world = decode(name, stages, {}, SamplingSection(rule=rule, temperature=1.0), seed)
    assert len(text) == WANTED
    assert max(text) < VOCABULARY
    assert world.memory.asked >= WANTED / 4
