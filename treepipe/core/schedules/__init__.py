"""The schedules: pure state machines, one file per family, and the frame they share.

Nothing here may import a clock, a random number, a model or a world (a test guards it).
"""
