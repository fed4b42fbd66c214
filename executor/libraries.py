"""All that workers import, imported by the fork server: they share it, and look through none of it.

Imports make a million objects that stay. Looking for garbage among them again and again takes a
quarter of the time of the imports, and would make each worker a copy of the memory they are in.
"""

from __future__ import annotations

import gc
import importlib

gc.disable()
for each in ("stage_worker", "draft_worker", "families"):
    importlib.import_module(f"treepipe.executor.{each}")
gc.freeze()
gc.enable()
