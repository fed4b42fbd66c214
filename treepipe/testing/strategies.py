"""Strategies of hypothesis for what a schedule may meet: its keys' values, requests, partitions.

They are made from a system's record, so that they fit any system.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from hypothesis import strategies as st

from treepipe.core.registry import keys_of
from treepipe.core.system import Parameters, System
from treepipe.testing.hashed_lm import DRAFTS, VOCABULARY

WIDE, FEW = 8, 2
"""A key's values go so far beyond its least one; those inside a tuple only a little."""
PARTITION = "groups"
"""The key that cuts the pipeline, which a trial does itself."""

DRAFT_NAMES = st.sampled_from(sorted(DRAFTS))
"""Drafts of ``hashed_lm.py``, from the target itself to one that knows nothing."""
END_TOKENS = st.frozensets(st.integers(0, VOCABULARY - 1), max_size=3)
GROUPS = st.integers(1, 5) | st.lists(st.integers(1, 3), min_size=1, max_size=4).map(tuple)
"""Stages that step alone: how many; or the sizes of groups of them (lock-step only)."""


def requests(
    least: int = 1, most: int = 4, longest: int = 18
) -> st.SearchStrategy[list[tuple[int, int, frozenset[int]]]]:
    """Prompt length, most new tokens and end tokens of ``least`` to ``most`` requests."""
    one = st.tuples(st.integers(1, 60), st.integers(1, longest), END_TOKENS)
    return st.lists(one, min_size=least, max_size=most)


def parameters_of(system: System) -> st.SearchStrategy[dict[str, Any]]:
    """Values of a system's keys that its record allows together, the partition excluded."""
    keys = keys_of([system.parameters])
    chosen = {name: _values(hint, key) for name, (hint, key) in keys.items() if name != PARTITION}
    return st.fixed_dictionaries(chosen).filter(lambda values: agree(system.parameters, values))


def agree(parameters: type[Parameters], values: Mapping[str, Any]) -> bool:
    """Whether a record allows these values of its keys together."""
    try:
        parameters(**values).check()
    except ValueError:
        return False
    return True


def _values(hint: Any, key: Field[Any]) -> st.SearchStrategy[Any]:
    least, most = key.metadata["least"], key.metadata["most"]
    return _of_type(hint, 0 if least is None else least, most, WIDE)


def _of_type(hint: Any, least: float, most: float | None, spread: int) -> st.SearchStrategy[Any]:
    kind = get_origin(hint)
    if kind in (Union, UnionType):
        return st.one_of(*[_of_type(each, least, most, spread) for each in get_args(hint)])
    if kind is Literal:
        return st.sampled_from(get_args(hint))
    if kind is tuple:
        return _tuples(get_args(hint), least, most)
    if hint is bool:
        return st.booleans()
    if hint is int:
        return st.integers(int(least), min(int(least) + spread, most or int(least) + spread))  # type: ignore[arg-type]
    if hint is float:
        return st.floats(least, 1.0 if most is None else most)
    if hint is type(None):
        return st.none()
    raise TypeError(f"keys of type {hint} are not drawn")


def _tuples(kinds: tuple[Any, ...], least: float, most: float | None) -> st.SearchStrategy[Any]:
    if kinds[-1] is Ellipsis:
        one = _of_type(kinds[0], least, most, FEW)
        return st.lists(one, min_size=1, max_size=3).map(tuple)
    return st.tuples(*[_of_type(kind, least, most, WIDE) for kind in kinds])
