"""A file for each serving engine, which ends in its record (``treepipe/planner/engine.py``)."""
