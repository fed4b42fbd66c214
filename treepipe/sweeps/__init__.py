"""Many scenarios from one file: all combinations and Latin hypercubes, kept as Parquet."""
