"""Validation: predict, run, and compare; the demonstration."""
