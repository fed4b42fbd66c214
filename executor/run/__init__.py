"""A run: the coordinator's crew and its recovery, and the bodies of the workers."""
