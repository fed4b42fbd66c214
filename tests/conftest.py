"""Settings of all tests: a property may take as long as it takes on a busy machine."""

from hypothesis import settings

settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
