"""The package's version, for those of its files that state it."""

__version__ = "0.1.0"
