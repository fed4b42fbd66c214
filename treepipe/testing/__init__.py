"""Laws of decoding schedules, for systems of this project and of anybody else.

``check`` tries them on a system and yields the outcome of each law; ``replay`` runs one case again;
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

from treepipe.testing.checking import Counterexample, Outcome, check, replay
from treepipe.testing.law import LAWS, Law, LawBroken
from treepipe.testing.pytest_laws import laws
from treepipe.testing.story import Story

__all__ = (
    "LAWS",
    "Counterexample",
    "Law",
    "LawBroken",
    "Outcome",
    "Story",
    "check",
    "laws",
    "replay",
)
