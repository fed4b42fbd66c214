"""The study of SpecPipe (2025): the best width, static trees, and runs on real processes."""
