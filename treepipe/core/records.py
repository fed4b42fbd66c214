"""The declaration of the core's records that are made for every message and every decision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:  # Python 3.10, the boards' own, lacks it in typing; only type checkers read it.

    def dataclass_transform(**_: Any) -> Any:
        return lambda decorated: decorated


Made = TypeVar("Made")


@dataclass_transform(frozen_default=True)
def record(made: type[Made]) -> type[Made]:
    """Make a dataclass with slots that is equal and hashed by value, and must not be changed.

    The type checker enforces the latter. A frozen dataclass would also check it at run time, but it
    sets each of its own fields through ``object.__setattr__``, and takes four times as long to be
    made: that was a tenth or more of a simulation.
    """
    return dataclass(slots=True, unsafe_hash=True)(made)
