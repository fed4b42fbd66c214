"""Fixtures for tests of the real world; the extra is imported when a test asks for one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from treepipe.executor.models.checkpoint import Checkpoint


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    from treepipe.executor.models.checkpoint import Checkpoint
    from treepipe.testing.random_model import save_random_checkpoint

    folder = tmp_path_factory.mktemp("target")
    return Checkpoint.open(save_random_checkpoint(folder, layers=4, seed=1, positions=512))


@pytest.fixture(scope="session")
def head(target: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.worlds.tiny_models import save_head

    return save_head(tmp_path_factory.mktemp("head"), target)
