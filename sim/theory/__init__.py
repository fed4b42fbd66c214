"""Closed forms of the papers' systems: pure functions of plain numbers, one file per system.

Times are in milliseconds, rates in 1/s. ``closed_form.py`` applies them to a scenario; every other
file knows nothing of scenarios, plans or the simulator.
"""
