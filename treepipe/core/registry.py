"""Tables of records by name: how records are found, and how they declare keys of a scenario.

Only what systems (``system.py``) and draft sources (``drafter.py``) have in common belongs here.
Nothing here loads NumPy, since command lines list the records before they compute anything.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from types import MappingProxyType, ModuleType, UnionType
from typing import Any, Generic, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

from treepipe.core.errors import UserError

NAME = r"[a-z][a-z0-9_]*"
"""The regular expression of a record's name."""
NAME_RULE = "a name is made of lower-case letters, digits and underscores, a letter first"


def key(
    default: Any,
    help: str,  # noqa: A002
    *,
    least: float | None = None,
    most: float | None = None,
) -> Any:
    """A field of a record's parameters, which is a key of the scenario's table of such records.

    Args:
        default: what it is where a scenario does not say; as published, if it was.
        help: what it means, in a few words.
        least, most: the bounds of a number, also inside tuples; None: any value.
    """
    return field(default=default, metadata={"help": help, "least": least, "most": most})


class Named(Protocol):
    """What every record has: a name, a dataclass of its keys, and a place in the table."""

    @property
    def name(self) -> str: ...
    @property
    def parameters(self) -> type: ...
    @property
    def rank(self) -> tuple[int, ...]: ...


Record = TypeVar("Record", bound=Named)


@dataclass(frozen=True, slots=True)
class Registry(Generic[Record]):
    """The places of one kind of records, and the table that is made of what they hold.

    Attributes:
        word: what one of them is called in messages.
        group: the entry point group in which installed packages name modules that hold some.
        names: the tuple of the records in each module.
        made: their class.
    """

    word: str
    group: str
    names: str
    made: type[Record]

    def find(self, package: str) -> Mapping[str, Record]:
        """All records of a package's modules and of installed packages, by name and in order.

        Raises:
            UserError: an installed one cannot be loaded, or as ``table_of``.
        """
        return MappingProxyType(self.table_of([*self._own(package), *self._installed()]))

    def table_of(self, found: Iterable[Record]) -> dict[str, Record]:
        """Records by name, in their order.

        Raises:
            UserError: two of them have one name, or share a key of which they say different things.
        """
        table: dict[str, Record] = {}
        keys: dict[str, tuple[str, Any]] = {}
        for record in sorted(found, key=lambda record: record.rank):
            if record.name in table:
                raise UserError(f"two {self.word}s are called {record.name!r}")
            table[record.name] = record
            for name, meaning in _meanings(record.parameters):
                first, agreed = keys.setdefault(name, (record.name, meaning))
                if meaning != agreed:
                    raise UserError(
                        f"{self.word}s {first!r} and {record.name!r} share the key {name}, but "
                        f"with different types or bounds; a scenario has one key of that name"
                    )
        return table

    def _own(self, package: str) -> Iterator[Record]:
        for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
            yield from self._records(importlib.import_module(f"{package}.{info.name}"))

    def _installed(self) -> Iterator[Record]:
        for entry in entry_points(group=self.group):
            try:
                yield from self._records(entry.load())
            except Exception as error:  # whatever another package does wrong
                raise UserError(
                    f"installed {self.word} {entry.name!r} ({entry.value}) cannot be loaded: "
                    f"{type(error).__name__}: {error}"
                ) from error

    def _records(self, module: ModuleType) -> Sequence[Record]:
        """The records of a module; raises ``TypeError`` if it has none."""
        records = getattr(module, self.names, None)
        if not isinstance(records, tuple) or not all(isinstance(r, self.made) for r in records):
            raise TypeError(
                f"{module.__name__} has no tuple {self.names} of {self.made.__name__} records"
            )
        return records


def names_of(parameters: type) -> frozenset[str]:
    """Names of the keys that the fields of a dataclass are."""
    return frozenset(each.name for each in dataclasses.fields(parameters))


def keys_of(parameters: Iterable[type]) -> dict[str, tuple[Any, dataclasses.Field[Any]]]:
    """Type and field of each key of several dataclasses, which mean the same by one name."""
    found: dict[str, tuple[Any, dataclasses.Field[Any]]] = {}
    for each in parameters:
        hints = get_type_hints(each)
        for own in dataclasses.fields(each):
            found.setdefault(own.name, (hints[own.name], own))
    return found


def wrong_keys(parameters: type, base: type) -> Iterator[str]:
    """What a dataclass of keys cannot mean; the first sentence is the one to be told."""
    if not (isinstance(parameters, type) and issubclass(parameters, base)):
        yield f"parameters is a subclass of {base.__name__}"
    if not names_of(parameters) >= set(vars(parameters).get("__annotations__", {})):
        yield f"{parameters.__name__} is no dataclass; write @dataclass(frozen=True) above it"
    for each in dataclasses.fields(parameters):
        if not each.metadata.get("help"):
            yield f"key {each.name} lacks its help; write it as key(default, help)"
        least, most = each.metadata["least"], each.metadata["most"]
        for number in _numbers(each.default):
            if least is not None and number < least:
                yield f"key {each.name}: its default {each.default} is less than its least value"
            if most is not None and number > most:
                yield f"key {each.name}: its default {each.default} is more than its most value"


def _meanings(parameters: type) -> Iterator[tuple[str, Any]]:
    """Keys, each with its type (None aside) and its bounds."""
    hints = get_type_hints(parameters)
    for each in dataclasses.fields(parameters):
        bounds = each.metadata["least"], each.metadata["most"]
        yield each.name, (_without_none(hints[each.name]), bounds)


def _without_none(hint: Any) -> frozenset[Any]:
    """The types that a value may have where there is one.

    >>> _without_none(int | None) == _without_none(int), _without_none(str) == _without_none(int)
    (True, False)
    """
    allowed = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return frozenset(allowed) - {type(None)}


def _numbers(value: Any) -> list[float]:
    """
    >>> _numbers(3), _numbers((1, (2.5, True))), _numbers(None)
    ([3], [1, 2.5], [])
    """
    if isinstance(value, tuple):
        return [number for each in value for number in _numbers(each)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []
