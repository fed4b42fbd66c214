"""The pure rules: trees, messages, protocol, stages, desks, verification, schedules.

Nothing here knows a clock, a model or a file; it imports NumPy and itself.
"""
