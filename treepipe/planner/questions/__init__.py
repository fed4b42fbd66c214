"""A file for each question, which ends in its record (``treepipe/planner/question.py``)."""
