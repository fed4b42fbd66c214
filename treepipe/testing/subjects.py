"""Finding what is to be tried: a system or an executor, by name or in a Python file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from treepipe.core.errors import UserError
from treepipe.core.registry import load_file
from treepipe.core.schedules import REGISTRY, systems
from treepipe.core.system import System
from treepipe.extras import need_executor
from treepipe.testing.tree_executor import TreeExecutor

_LOADED: dict[str, dict[str, System]] = {}
"""Records by name, by file: its code runs once."""


def found_system(system: str | System) -> System:
    """Return the record of a system that is named: in the table, or as FILE.py or FILE.py:NAME.

    Raises:
        UserError: there is none, or the file cannot be loaded.
    """
    if isinstance(system, System):
        return system
    file, _, name = system.partition(":")
    if not file.endswith(".py"):
        if system not in systems():
            raise UserError(f"there is no system {system!r}; there are {', '.join(systems())}")
        return systems()[system]
    if file not in _LOADED:
        _LOADED[file] = {record.name: record for record in REGISTRY.of_file(Path(file))}
    found = _LOADED[file]
    if not name and len(found) > 1:
        raise UserError(f"{file} has {', '.join(found)}: name one, as {file}:{next(iter(found))}")
    if name and name not in found:
        raise UserError(f"{file} has no system {name!r}; it has {', '.join(found)}")
    return found[name or next(iter(found))]


def found_executor(executor: str | TreeExecutor) -> TreeExecutor:
    """Return an executor: an adapter of ``adapters.py`` by name, or FILE.py:FUNCTION's result.

    Raises:
        UserError: there is none, the file cannot be loaded, or the function fails.
    """
    if not isinstance(executor, str):
        return executor
    file, _, name = executor.partition(":")
    if not file.endswith(".py"):
        need_executor("an executor of this project")
        from treepipe.testing.adapters import ADAPTERS, adapted

        if executor not in ADAPTERS:
            known = ", ".join(ADAPTERS)
            raise UserError(f"there is no executor {executor!r}; there are {known} and FILE.py")
        return adapted(executor)
    make: Any = getattr(load_file(Path(file)), name, None) if name else None
    if not callable(make):
        raise UserError(f"{executor}: name a function of the file that returns one: {file}:make")
    try:
        made: TreeExecutor = make()
    except Exception as error:  # any fault of somebody's code
        raise UserError(f"{executor}: {type(error).__name__}: {error}") from error
    return made
