"""The laws, which ``laws.toml`` lists, and the report of a broken one.

The code that tries them is in ``trials`` and ``tree_executor.py``; the reference worlds that
observe them report through ``hold``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from treepipe.files.toml_file import read_toml


class LawBroken(AssertionError):  # noqa: N818  (it names what happened)
    """A law does not hold.

    Attributes:
        law: its name.
    """

    def __init__(self, law: str, sentence: str) -> None:
        super().__init__(f"{law}: {sentence}")
        self.law = law


def hold(condition: object, law: str, sentence: str) -> None:
    """Raise ``LawBroken`` unless the condition is true."""
    if not condition:
        raise LawBroken(law, sentence)


@dataclass(frozen=True, slots=True)
class Law:
    """One law.

    Attributes:
        name: its name on the command line.
        sentence: what holds.
        source: paper and section that state it or that it follows from.
        trial: name of the trial that tries it.
    """

    name: str
    sentence: str
    source: str
    trial: str


PROTOCOL = "protocol"
"""The law that any failure of a subject's own code breaks."""


def _read(kind: str) -> Mapping[str, Law]:
    laws = read_toml(Path(__file__).with_name("laws.toml"))[kind]
    return {
        name: Law(name, law["holds"], law["source"], law["trial"]) for name, law in laws.items()
    }


LAWS, TREE_LAWS = _read("systems"), _read("executors")
"""The laws of schedules and those of executors by name, in the order in which they are told."""
