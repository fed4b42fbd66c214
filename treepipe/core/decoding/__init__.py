"""The parts of schedules: a request, its tree in flight, drafting, rounds and layers.

Nothing here knows which systems there are; those are in ``schedules/``, a file each.
"""
