"""Closed forms of the papers' systems; every one is tested against the simulator (docs/theory.md).

Pure functions of plain numbers, times in milliseconds and rates in 1/s: ``tokens`` (acceptance),
``starsd``, ``layered`` (PipeDec, SpecPipe), ``central`` and ``paired`` (PipeDec's scheduler),
``flowspec``, ``dsd``, ``queues``. Durations are in ``passage``; ``alone``, ``shared`` and
``stepped`` put the two together, and ``closed_form`` says which of them describes a scenario.
"""
