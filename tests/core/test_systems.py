"""The records of systems: what cannot be meant is refused when a record is made, or the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

from treepipe.core.errors import UserError
from treepipe.core.registry import key
from treepipe.core.schedules import REGISTRY, systems
from treepipe.core.system import Parameters, System

CHAIN = systems()["chain"]


@dataclass(frozen=True)
class Wide(Parameters):
    """A width."""

    width: int = key(4, "most nodes of a layer", least=1)


@dataclass(frozen=True)
class Words(Parameters):
    """A width of another kind."""

    width: str = key("wide", "how wide")


@dataclass(frozen=True)
class Silent(Parameters):
    """A key that says nothing of itself."""

    width: int = 4


@dataclass(frozen=True)
class Small(Parameters):
    """A default that a scenario could not say."""

    widths: tuple[int, ...] = key((2, 0), "children per depth", least=1)


@dataclass(frozen=True)
class Contrary(Parameters):
    """Defaults that contradict each other."""

    def check(self) -> None:
        raise ValueError("prefill_chunk = 64: never")


@dataclass(frozen=True)
class Misnamed(Parameters):
    """Tells of a key that it does not have."""

    def lengths(self) -> dict[str, int]:
        return {"gama": 3}


class Undecorated(Parameters):
    """Its key would be shared by all instances."""

    width: int = key(4, "most nodes of a layer")


def always(value: Any) -> Callable[..., Any]:
    """A function of whatever a record's functions are given."""
    return lambda *arguments: value


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"name": "Chain-2"}, "lower-case letters"),
        ({"summary": ""}, "summary"),
        ({"drafts": False}, "without a draft"),
        ({"parameters": dict}, "subclass of Parameters"),
        ({"parameters": Silent}, "key width lacks its help"),
        ({"parameters": Small}, r"default \(2, 0\) is less"),
        ({"parameters": Contrary}, "contradict each other: prefill_chunk"),
        ({"parameters": Misnamed}, "gama is none of its keys"),
        ({"parameters": Undecorated}, "Undecorated is no dataclass"),
        ({"tree_tokens": always(-1)}, "a bound for 1 stages is -1"),
        ({"segment_tokens": always(2.5)}, "a bound for 1 stages is 2.5"),
        ({"scratch_tokens": always(None)}, "a bound for 1 stages is None"),
        ({"make": always(None)}, "make gives no schedule"),
        ({"places": always(0)}, "places is 0"),
        ({"grid": always([{"gama": (1,)}])}, "the grid names gama"),
    ],
)
def test_what_a_record_cannot_mean_is_refused(change: dict[str, Any], part: str) -> None:
    with pytest.raises(ValueError, match=rf"^system '[\w-]+': .*{part}"):
        replace(CHAIN, **change)


@pytest.mark.parametrize("missing", ["parameters", "make", "tree_tokens", "segment_tokens"])
def test_what_a_record_forgets_is_refused(missing: str) -> None:
    """Nothing falls back to a value that would be wrong without a word."""
    given = {each.name: getattr(CHAIN, each.name) for each in fields(System)}
    del given[missing]
    with pytest.raises(TypeError, match=missing):
        System(**given)


def test_no_two_systems_have_one_name() -> None:
    with pytest.raises(UserError, match="two systems are called 'chain'"):
        REGISTRY.table_of([CHAIN, replace(CHAIN, year=2030)])


def wide(name: str, parameters: type[Parameters]) -> System:
    """A system of other keys that decodes like ``pp``."""
    return replace(systems()["pp"], name=name, parameters=parameters)


def test_a_key_means_the_same_in_all_systems() -> None:
    @dataclass(frozen=True)
    class Optional(Parameters):
        """Where it is not said it follows from something else."""

        width: int | None = key(None, "most nodes of a layer", least=1)

    @dataclass(frozen=True)
    class Wider(Parameters):
        """Another bound."""

        width: int = key(4, "most nodes of a layer", least=2)

    assert list(REGISTRY.table_of([wide("a", Wide), wide("b", Optional)])) == ["a", "b"]
    for other in (Words, Wider):
        with pytest.raises(UserError, match="'a' and 'b' share the key width"):
            REGISTRY.table_of([wide("a", Wide), wide("b", other)])
