"""The scenario file: its schema, how it is read, and what both worlds are started with."""
