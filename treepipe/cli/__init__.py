"""The command line: arguments in, exit codes out; the work is done elsewhere."""
