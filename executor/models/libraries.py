"""The imports of all workers, which the fork server shares with them.

They make a million permanent objects, among which garbage collection would take a quarter of the
imports' time, and copy their memory for each worker.
"""

from __future__ import annotations

import gc
import importlib

gc.disable()
for each in ("run.stage_worker", "run.draft_worker", "models.families"):
    importlib.import_module(f"treepipe.executor.{each}")
gc.freeze()
gc.enable()
