"""What a run leaves behind: trace, recording, metrics, statistics, tables and pictures."""
