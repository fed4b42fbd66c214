"""Checkpoints written wider: heavier by real work, with the text of the plain ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.worlds.command_line import assert_sentence
from tests.worlds.tiny_models import greedy, parameter_bytes, save_head
from treepipe.core.errors import UserError
from treepipe.core.protocol import DraftPass
from treepipe.executor.measure.acceptance import WholeModel
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.models.eagle import EagleDraft
from treepipe.executor.models.widening import main, write_wider
from treepipe.testing.random_model import save_random_checkpoint

torch.set_num_threads(1)

PROMPT = [5, 9, 2, 40, 17]


@pytest.mark.parametrize("architecture", ["llama", "olmo2"])
def test_a_widened_model_is_heavier_and_says_the_same(architecture: str, tmp_path: Path) -> None:
    """However many files it is in."""
    folder = tmp_path / "plain"
    save_random_checkpoint(folder, architecture=architecture, layers=3, seed=1, shard_size="40KB")
    assert (folder / "model.safetensors.index.json").exists()
    main([str(folder), "9", str(tmp_path / "wide")])
    plain, wide = Checkpoint.open(folder), Checkpoint.open(tmp_path / "wide")
    model = WholeModel(wide, 64)
    assert model.greedy(PROMPT, 24) == greedy(folder, PROMPT, 24)
    assert greedy(tmp_path / "wide", PROMPT, 24) == greedy(folder, PROMPT, 24)
    more = 3 * (32 * 64) * 8  # three matrices of [64, 32], eight times more of each
    assert wide.layer_parameters == plain.layer_parameters + more
    assert parameter_bytes(model.stage) == 3 * 4 * wide.layer_parameters


def test_what_is_added_is_work_that_no_library_can_skip(tmp_path: Path) -> None:
    """Every new row of gate and up is its own and of the old ones' size; none is near zero."""
    folder = save_random_checkpoint(tmp_path / "plain", layers=1)
    plain = Checkpoint.open(folder).tensors("model.layers.0.mlp.")
    wide = Checkpoint.open(write_wider(folder, 4, tmp_path / "wide")).tensors("model.layers.0.mlp.")
    for name in ("gate_proj.weight", "up_proj.weight"):
        old, new = wide[name].split([64, 192])
        assert torch.equal(old, plain[name])
        assert len(new.unique(dim=0)) == 192
        sizes = new.norm(dim=1) / old.norm(dim=1).mean()
        assert sizes.min() > 0.4
        assert sizes.max() < 2
    old, new = wide["down_proj.weight"].split([64, 192], dim=1)
    assert torch.equal(old, plain["down_proj.weight"])
    assert not new.any()
    assert not torch.equal(wide["gate_proj.weight"][64:], wide["up_proj.weight"][64:])


def test_a_widened_head_drafts_the_same(target: Checkpoint, tmp_path: Path) -> None:
    folder = save_head(tmp_path / "head", target)
    states = WholeModel(target, 64)
    states.stage.open(0)
    hidden = states.stage.forward(0, states.ends.embed(PROMPT), range(5), None)
    found = []
    for each in (folder, write_wider(folder, 5, tmp_path / "wide")):
        draft = EagleDraft(each, target, 64)
        draft.open(0)
        draft.observe(0, states.ends.features(hidden))
        answers = [draft.log_probs(0, DraftPass(0, (*PROMPT, 3), (), (), True, 4))]
        answers.append(draft.log_probs(0, DraftPass(0, (), (7, 8), (-1, 0), False, 4)))
        found.append(torch.cat(answers))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)


def test_bad_input_is_one_sentence_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out = save_random_checkpoint(tmp_path / "plain", layers=1), tmp_path / "out"
    config = tmp_path / "config"
    config.mkdir()
    (config / "config.json").write_text("{}")
    fused = save_random_checkpoint(tmp_path / "fused", architecture="phi3", layers=1)
    for given, times, sentence in (
        (folder, 0, "times = 0"),
        (fused, 2, "have no mlp.gate_proj"),
        (tmp_path, 2, "config.json"),
        (config, 2, "key intermediate_size must be a number"),
    ):
        with pytest.raises(UserError, match=sentence):
            write_wider(given, times, out)
        assert not out.exists()
    capsys.readouterr()  # what the library says of the checkpoint that it has written
    for place, part in ((folder, "exists already"), (folder / "config.json/x", "be written")):
        with pytest.raises(SystemExit) as ended:
            main([str(folder), "2", str(place)])
        assert ended.value.code == 2
        assert_sentence(capsys.readouterr().err, part)
