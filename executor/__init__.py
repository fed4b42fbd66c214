"""The real world: processes, partitioned models, messages; needs the extra ``executor``."""
