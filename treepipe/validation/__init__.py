"""Validation: predict, run, and compare; the demonstration and the standard grid's cells."""
