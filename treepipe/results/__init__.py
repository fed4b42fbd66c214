"""Results of a run: trace, recording, metrics, statistics, tables and pictures."""
