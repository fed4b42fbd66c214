"""Processes on this host and others: the fork server, and the daemon and the sessions with it."""
