"""The records of draft sources: contradictions are refused, and nobody else knows a name."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.sources import nodes
from treepipe.core.captures import NORMED
from treepipe.core.drafter import EAGLE_HEAD, TAKEN, DraftParameters
from treepipe.core.drafts import REGISTRY, drafters
from treepipe.core.drafts.ngram import LOOKUP
from treepipe.core.errors import UserError
from treepipe.core.registry import key
from treepipe.scenario.schema import DraftSection

ROOT = Path(__file__).parents[2]
MODEL, EAGLE = drafters()["model"], drafters()["eagle"]


@dataclass(frozen=True)
class Heavy(DraftParameters):
    """A default beyond its bound."""

    share: float = key(1.5, "of the model", least=0, most=1)


@dataclass(frozen=True)
class Elsewhere(DraftParameters):
    """A key that every draft server has."""

    device: str = key("cpu", "what it works on")


@dataclass(frozen=True)
class Longer(DraftParameters):
    """A key of prompt lookup with another bound."""

    ngram: int = key(3, "longest suffix", least=1, most=9)


@pytest.mark.parametrize(
    ("record", "change", "part"),
    [
        (MODEL, {"name": "Big-Model"}, "lower-case letters"),
        (MODEL, {"summary": ""}, "summary"),
        (MODEL, {"opens": "treepipe.executor.models.draft_model"}, "is no MODULE:FUNCTION"),
        (MODEL, {"parameters": dict}, "subclass of DraftParameters"),
        (MODEL, {"parameters": Heavy}, "default 1.5 is more than its most value"),
        (MODEL, {"parameters": Elsewhere}, "key device is one of every draft server's"),
        (MODEL, {"weights": None}, "unverified_depths is 0 for a language model alone"),
        (MODEL, {"captures": (NORMED,)}, "unverified_depths is 0 for a language model alone"),
        (LOOKUP, {"unverified_depths": -1}, "unverified_depths is 0 for a language model alone"),
        (EAGLE, {"captures": ()}, "a head reads the target's states"),
    ],
)
def test_what_a_record_cannot_mean_is_refused(
    record: Any, change: dict[str, Any], part: str
) -> None:
    with pytest.raises(ValueError, match=rf"^draft source '[\w-]+': .*{part}"):
        replace(record, **change)


def test_a_key_has_one_meaning_and_a_name_one_record() -> None:
    with pytest.raises(UserError, match="'ngram' and 'mine' share the key ngram"):
        REGISTRY.table_of([LOOKUP, replace(LOOKUP, name="mine", parameters=Longer)])
    with pytest.raises(UserError, match="two draft sources are called 'ngram'"):
        REGISTRY.table_of([LOOKUP, LOOKUP])


def test_every_other_key_of_a_draft_server_is_taken() -> None:
    own = set[str]().union(*(each.keys for each in drafters().values()))
    assert set(DraftSection.model_fields) == TAKEN | own


def test_nobody_else_knows_a_draft_source_by_name() -> None:
    """Other words are of many other things; the system ``eagle`` is not the draft source."""
    names, records = {*drafters()} - {"model", "block"}, ROOT / "treepipe" / "core"
    rooms = [ROOT / "treepipe", ROOT / "executor", ROOT / "sim", ROOT / "profiles"]
    files = {file.resolve() for room in rooms for file in room.rglob("*.py")}
    apart = {records / "drafts", records / "schedules", ROOT / "studies"}
    knowing = {
        file.relative_to(ROOT).as_posix()
        for file in files
        if not apart & {*file.parents}
        for node in nodes(file)
        if isinstance(node, ast.Constant) and node.value in names
    }
    # Bundled heads' folders are called so, what tells a head's shape, and kinds in files of others.
    core, scenario = "treepipe/core/drafter.py", "treepipe/scenario/placement.py"
    files = {"profiles/model_config.py", "profiles/quantization.py", "profiles/service.py"}
    assert knowing == {core, scenario, "executor/models/eagle3_head.py", *files}


def test_what_opens_a_draft_is_there_and_reads_states_where_its_record_says_so() -> None:
    pytest.importorskip("torch")
    from treepipe.executor.models.sources import opener

    assert EAGLE.weights == EAGLE_HEAD
    predicted = [each for each in drafters().values() if each.opens is None]
    for each in predicted:
        with pytest.raises(UserError, match=f"draft source '{each.name}': .* is predicted only"):
            opener(each)
    for each in {*drafters().values()} - {*predicted}:
        opened = opener(each)
        observes = hasattr(getattr(opened, "__self__", None), "observe")
        assert observes == each.reads_states, each.name
    with pytest.raises(UserError, match="draft source 'ngram': no_such:part cannot be loaded"):
        opener(replace(LOOKUP, opens="no_such:part"))
