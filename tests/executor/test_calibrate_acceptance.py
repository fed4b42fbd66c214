"""``treepipe calibrate acceptance``: a recorded pool, its profile, and a scenario that uses it.

A head is recorded to answer for every token of a text, once per depth below what is known.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

import numpy as np
import pytest

from tests.worlds.command_line import SCENARIO, Terminal
from treepipe.core.drafts import drafters
from treepipe.core.messages import NO_PARENT
from treepipe.core.protocol import DraftPass
from treepipe.executor.measure.acceptance import (
    CANDIDATES,
    Texts,
    WholeModel,
    candidates_of,
    open_pair,
    rank_of,
    record_acceptance,
)
from treepipe.executor.measure.calibrate import calibrate_acceptance
from treepipe.executor.measure.requests import AcceptanceRequest
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.eagle import EagleDraft
from treepipe.executor.models.source_settings import SourceSettings
from treepipe.profiles.library import check_file, find_acceptance
from treepipe.profiles.pool_file import PoolFile
from treepipe.scenario.schema import SamplingSection, SourceSection

PROMPTS = [(3, 9, 27, 20), (60, 58, 52, 34, 1, 2)]
TOKENS = 6
TEXTS = ["def spam(eggs):", "import os", "The quick brown fox"]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "texts.json"
    path.write_text(json.dumps(TEXTS))
    return path


@pytest.mark.processes
def test_the_reference_pair_is_recorded_and_simulates(terminal: Terminal, prompts: Path) -> None:
    out = terminal.folder / "pair.toml"
    arguments = ("--prompts", prompts, "--set", "new_tokens=10", "--set", "task=code", "--quiet")
    terminal.succeeds("calibrate", "acceptance", *arguments, "--out", out)
    kind, warnings = check_file(out)
    assert (kind, warnings) == ("acceptance", [])
    profile, _ = find_acceptance(str(out), "test")
    assert (profile.target, profile.draft, profile.task) == ("reference", "reference", "code")
    assert profile.pool == "pair.json"
    pair = open_pair(AcceptanceRequest(prompts=str(prompts), settings=["new_tokens=10"]))
    recorded = record_acceptance(pair.settings, pair.texts)
    for ours, theirs in zip(
        PoolFile.load(out.with_suffix(".json")).prompts, recorded.prompts, strict=True
    ):
        assert ours.known.ranks == theirs.known.ranks
        np.testing.assert_allclose(ours.known.vectors, theirs.known.vectors, atol=1e-3)
    assert f"of {len(recorded.ranks)} tokens of 3 texts" in profile.origin.note
    path = terminal.folder / "scenario.toml"
    bernoulli = 'source = "bernoulli"\nbeta = 0.7'
    path.write_text(SCENARIO.replace(bernoulli, 'source = "profile"\nname = "./pair.toml"'))
    terminal.succeeds("simulate", path, "--quiet")


@pytest.mark.processes
def test_a_head_is_recorded_with_its_guesses(terminal: Terminal, prompts: Path) -> None:
    arguments = ("--head", "reference", "--prompts", prompts, "--set", "new_tokens=6", "--quiet")
    terminal.succeeds("calibrate", "acceptance", *arguments, "--out", "head.toml")
    assert all(each.guessed for each in PoolFile.load(Path("head.json")).prompts)


@pytest.mark.processes
def test_an_interruption_keeps_the_prompts_that_are_done(tmp_path: Path, prompts: Path) -> None:
    out, done = tmp_path / "pair.toml", 0

    def say(what: str, steps: int) -> None:
        nonlocal done
        done += not what
        if done == 2:
            signal.raise_signal(signal.SIGINT)

    asked = AcceptanceRequest(prompts=str(prompts), settings=["new_tokens=6", "task=code"], out=out)
    with pytest.raises(KeyboardInterrupt):
        calibrate_acceptance(asked, say)
    profile, _ = find_acceptance(str(out), "test")
    assert "of 2 texts" in profile.origin.note
    assert "interrupted, 3 texts were asked for" in profile.origin.note
    assert len(json.loads((tmp_path / "pair.json").read_text())["prompts"]) == 2


# --- heads, in memory -----------------------------------------------------------------------------


def test_answers_by_depth_are_the_heads(target: Checkpoint, head: Path) -> None:
    draft = EagleDraft(head, target, 64)
    asked = Texts(target, PROMPTS, TOKENS)
    settings = SourceSettings(SourceSection(source="eagle"), head, SamplingSection(), False, 0)
    pool = record_acceptance(settings, asked)
    assert PoolFile.from_content(pool.content()).content() == pool.content()
    assert pool.candidates == CANDIDATES
    assert {steps: len(rows) for steps, rows in pool.off_path.items()} == {
        steps: len(PROMPTS) * TOKENS // 2 for steps in (1, 2, 3)
    }
    for prompt, recorded in zip(PROMPTS, pool.prompts, strict=True):
        text = WholeModel(target, 64).greedy(prompt, TOKENS)
        tables = [recorded.known, *recorded.guessed]
        assert len(tables) == drafters()["eagle"].unverified_depths + 1
        assert all(len(table.ranks) == TOKENS for table in tables)
        # Two levels below the second new token: the answer for the fourth, by hand.
        found = _answers(target, draft, prompt, text, known=2)
        for depth, (log_probs, rank) in enumerate(found):
            np.testing.assert_allclose(
                tables[depth].vectors[2 + depth], log_probs, rtol=1e-4, atol=1e-3
            )
            assert tables[depth].ranks[2 + depth] == rank
        assert tables[3].ranks[1] == tables[1].ranks[1], "no deeper than the text reaches"


def _answers(
    target: Checkpoint, draft: EagleDraft, prompt: tuple[int, ...], text: list[int], known: int
) -> list[tuple[list[float], int]]:
    """What the head says of the text's tokens from ``known`` on when those before are verified."""
    whole, tokens = WholeModel(target, 64), [*prompt, *text]
    whole.stage.open(0)
    states = whole.stage.forward(0, whole.ends.embed(tokens), range(len(tokens)), None)
    draft.open(9)
    draft.observe(9, whole.ends.features(states[: len(prompt) + known]))
    order = DraftPass(0, tuple(tokens[: len(prompt) + known]), (), (), True, 1)
    found = []
    for depth, token in enumerate(text[known:]):
        ids, rows = candidates_of(draft.log_probs(9, order))
        found.append((rows[0].tolist(), rank_of(ids[0], token)))
        order = DraftPass(0, (), (token,), (depth - 1 if depth else NO_PARENT,), False, 1)
    draft.close(9)
    return found
