"""Closed forms of the papers' systems; tests compare each with the simulator (docs/theory.md).

Pure functions of plain numbers, times in milliseconds and rates in 1/s. Durations are in
``passage``; ``closed_form`` says which form describes a scenario.
"""
