"""Tables of records by name: finding records, and declaring keys of a scenario.

Nothing here loads NumPy, since command lines list the records before they compute anything.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import MappingProxyType, ModuleType, UnionType
from typing import Any, Generic, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

from treepipe.core.errors import UserError

NAME = r"[a-z][a-z0-9_]*"
NAME_RULE = "a name is made of lower-case letters, digits and underscores, a letter first"


def key(
    default: Any,
    help: str,  # noqa: A002
    *,
    least: float | None = None,
    most: float | None = None,
) -> Any:
    """Declare a field of a record's parameters: a key of the scenario's table of such records.

    Args:
        default: value where a scenario does not set it; as published, if it was.
        help: its meaning in a few words.
        least, most: the bounds of a number, also inside tuples; None: any value.
    """
    return field(default=default, metadata={"help": help, "least": least, "most": most})


class Named(Protocol):
    """A record's name, the dataclass of its keys, and its place in the table."""

    @property
    def name(self) -> str: ...
    @property
    def parameters(self) -> type: ...
    @property
    def rank(self) -> tuple[int, ...]: ...


Record = TypeVar("Record", bound=Named)


@dataclass(frozen=True, slots=True)
class Registry(Generic[Record]):
    """The table of one kind of records.

    Attributes:
        word: name of this kind in messages.
        group: the entry point group in which installed packages name modules with such records.
        names: name of the tuple of the records in each module.
        made: class of the records.
    """

    word: str
    group: str
    names: str
    made: type[Record]

    def find(self, package: str) -> Mapping[str, Record]:
        """Return all records of a package's modules and of installed packages, in order.

        Raises:
            UserError: an installed one cannot be loaded, or as ``table_of``.
        """
        return MappingProxyType(self.table_of([*self._own(package), *self.installed()]))

    def table_of(self, found: Iterable[Record]) -> dict[str, Record]:
        """Return records by name, in their order.

        Raises:
            UserError: two of them have one name, or give a shared key different meanings.
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

    def installed(self) -> Iterator[Record]:
        """Yield the records of installed packages; raise ``UserError`` if one cannot be loaded."""
        for entry in entry_points(group=self.group):
            try:
                yield from self._records(entry.load())
            except Exception as error:  # any fault of another package
                raise UserError(
                    f"installed {self.word} {entry.name!r} ({entry.value}) cannot be loaded: "
                    f"{type(error).__name__}: {error}"
                ) from error

    def of_file(self, file: Path) -> Sequence[Record]:
        """Return the records of a Python file, whatever else is installed.

        Raises:
            UserError: it cannot be loaded, or has no such records.
        """
        try:
            return self._records(load_file(file))
        except TypeError as error:
            raise UserError(f"{file}: {error}") from None

    def _records(self, module: ModuleType) -> Sequence[Record]:
        """Return the records of a module; raise ``TypeError`` if it has none."""
        records = getattr(module, self.names, None)
        if not isinstance(records, tuple) or not all(isinstance(r, self.made) for r in records):
            raise TypeError(
                f"{module.__name__} has no tuple {self.names} of {self.made.__name__} records"
            )
        return records


def load_file(file: Path) -> ModuleType:
    """Run a Python file as a module. Raises ``UserError`` if there is none, or it fails."""
    spec = spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise UserError(f"{file}: there is no such Python file")
    module = module_from_spec(spec)
    sys.modules[file.stem] = module  # dataclasses of the file look their types up there
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # any fault of somebody's code
        raise UserError(f"{file}: cannot be loaded: {type(error).__name__}: {error}") from error
    return module


def names_of(parameters: type) -> frozenset[str]:
    return _names_of(parameters)


@cache
def _names_of(parameters: type) -> frozenset[str]:
    return frozenset(each.name for each in dataclasses.fields(parameters))


def keys_of(parameters: Iterable[type]) -> dict[str, tuple[Any, dataclasses.Field[Any]]]:
    """Return type and field of each key of several dataclasses, which mean the same by one name."""
    found: dict[str, tuple[Any, dataclasses.Field[Any]]] = {}
    for each in parameters:
        hints = get_type_hints(each)
        for own in dataclasses.fields(each):
            found.setdefault(own.name, (hints[own.name], own))
    return found


def wrong_keys(parameters: type, base: type) -> Iterator[str]:
    """Yield the contradictions of a dataclass of keys, a sentence each."""
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
    """Yield keys, each with its type (without None) and its bounds."""
    hints = get_type_hints(parameters)
    for each in dataclasses.fields(parameters):
        bounds = each.metadata["least"], each.metadata["most"]
        yield each.name, (_without_none(hints[each.name]), bounds)


def _without_none(hint: Any) -> frozenset[Any]:
    """Return the types of a value other than None.

    >>> _without_none(int | None) == _without_none(int), _without_none(str) == _without_none(int)
    (True, False)
    """
    allowed = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return frozenset(allowed) - {type(None)}


def _numbers(value: Any) -> list[float]:
    """Return the numbers in a value.

    >>> _numbers(3), _numbers((1, (2.5, True))), _numbers(None)
    ([3], [1, 2.5], [])
    """
    if isinstance(value, tuple):
        return [number for each in value for number in _numbers(each)]
    return [value] if isinstance(value, int | float) and not isinstance(value, bool) else []
