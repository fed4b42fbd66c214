"""The tests; helpers are the modules without ``test_`` in their name."""
