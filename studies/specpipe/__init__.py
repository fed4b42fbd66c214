"""SpecPipe (2025): the best width and why, static trees, and the same on real processes."""
