"""A run ignores no key in silence: each changes what its workers are given, or has a word.

Nothing is started: what is compared are the orders that a ``Controller`` would start workers with,
the deployments that it would run, and what the result would be made with.
"""

from __future__ import annotations

import functools
import json
import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from tests.worlds.changed import changed
from tests.worlds.every_key import PLAIN, USUAL, Key, Outcome, check_heard, every_key, situated
from treepipe.core.errors import UserError
from treepipe.executor.models.checkpoint import Checkpoint
from treepipe.executor.run import launch
from treepipe.executor.run.controller import run_warnings
from treepipe.scenario.scenario import Scenario

KEYS = every_key(USUAL)


@pytest.fixture(scope="module", autouse=True)
def _opened_once() -> Iterator[None]:
    """Checkpoints and texts are read once for all keys."""
    with pytest.MonkeyPatch.context() as patch:
        tokenize, known = launch.tokenize, dict[Any, Any]()

        def tokens(by: Checkpoint, texts: list[str], key: str) -> list[tuple[int, ...]]:
            asked = by.directory, tuple(texts)
            if asked not in known:
                known[asked] = tokenize(by, texts, key)
            return known[asked]

        patch.setattr(Checkpoint, "open", functools.cache(Checkpoint.open))
        patch.setattr(launch, "tokenize", tokens)
        yield


@functools.cache
def prepared(content: str) -> Outcome:
    try:
        scenario = Scenario.of(json.loads(content))
        made = launch.prepare(scenario)
        warnings = run_warnings(scenario, made)
    except UserError as error:
        return "", str(error)
    kept = [changed(each, warnings=()) for each in made.runs]
    result = scenario.name, scenario.workload.warmup_requests, scenario.sampling.lossless
    orders = [(role.travelling, role.port) for role in made.roles]
    return str(pickle.dumps((orders, kept, result))), repr(warnings)


def running(content: dict[str, Any]) -> dict[str, Any]:
    """The scenario with models that can run."""
    draft = content["drafts"][0]
    target, model = [
        {"checkpoint": "reference"} | ({} if "profile" in each else each)
        for each in (content["target"], draft.get("model", {}))
    ]
    return {**content, "target": target, "drafts": [{**draft, "model": model}]}


def test_what_is_compared_depends_on_the_scenario_alone() -> None:
    content = json.dumps(running(USUAL))
    assert prepared.__wrapped__(content) == prepared.__wrapped__(content)
    assert prepared(content)[0]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_a_key_is_heard_where_it_is_meant_to_be_read(key: Key) -> None:
    labels = ("shape.tied", "shape.eagle", "shape.inputs", "head.0.shared")
    labels += ("shape.bits", "kinds.0.window", "kinds.0.kept")
    if not str(key).endswith(labels):  # of a single entry, they are its label
        check_heard(prepared, key, running(situated(key)))


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_a_key_is_heard_or_told_of_in_plain_decoding(key: Key) -> None:
    check_heard(prepared, key, running(PLAIN), refused=True)
