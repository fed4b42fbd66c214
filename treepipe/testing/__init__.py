"""Laws of decoding schedules, for systems of this project and of anybody else.

``check`` tries them on a system and yields the outcome of each law, ``check_executor`` tries those
of tree attention on any engine (``tree_executor.py``); ``replay`` runs one case again;
``laws`` makes one test of each law for pytest. The worlds that the laws are tried in
(``timeless_world.py``, ``pipeline.py``), the references that they are held against (``ledger.py``,
``hashed_lm.py``) and the strategies that draw cases (``strategies.py``) are public, too. All of it
needs the extra ``check`` (hypothesis).

>>> import treepipe.testing
>>> found = treepipe.testing.check("chain", laws=["order"], examples=2)
>>> {outcome.law.name: outcome.verdict for outcome in found}
{'order': 'holds'}
"""

from __future__ import annotations

from treepipe.testing.checking import (
    Counterexample,
    LawOutcome,
    check,
    check_executor,
    laws,
    replay,
)
from treepipe.testing.law import LAWS, TREE_LAWS, Law, LawBroken
from treepipe.testing.story import Story
from treepipe.testing.tree_executor import TreeExecutor

__all__ = (
    "LAWS",
    "TREE_LAWS",
    "Counterexample",
    "Law",
    "LawBroken",
    "LawOutcome",
    "Story",
    "TreeExecutor",
    "check",
    "check_executor",
    "laws",
    "replay",
)
