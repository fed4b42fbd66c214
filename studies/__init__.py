"""Studies: questions answered by simulation and real runs, and their plots."""
