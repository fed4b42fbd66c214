"""The study of PipeDec (2025): 7, 14 and 21 stages, width and candidates, batches of requests."""
