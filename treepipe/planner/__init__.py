"""The planner: a search for the best schedule, parameters and partition of a cluster."""
