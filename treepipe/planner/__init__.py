"""The planner: which schedule, with which parameters and partition, suits a cluster best."""
