"""FlowSpec's table (2025): fitted where a few cells are known, predicted everywhere else."""
