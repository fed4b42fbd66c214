"""Fixtures for tests of several folders; the extra is imported when a test asks for one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds.command_line import SCENARIO, Terminal


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Checkpoints of a target and its draft, tiny and random."""
    from treepipe.testing.random_model import save_random_checkpoint

    folder = tmp_path_factory.mktemp("pair")
    target = save_random_checkpoint(folder / "target", layers=4, seed=1, positions=512)
    draft = save_random_checkpoint(folder / "draft", layers=1, seed=2, positions=512)
    return target, draft


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """The file of a small scenario."""
    path = tmp_path / "small.toml"
    path.write_text(SCENARIO)
    return path


@pytest.fixture
def terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Terminal:
    """Its folder is the test's own one, and the one in which the test works."""
    monkeypatch.chdir(tmp_path)
    return Terminal(tmp_path, monkeypatch, capsys)
