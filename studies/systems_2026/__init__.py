"""Reproduction of SPD, and of what serving engines measured with speculation over a pipeline."""
