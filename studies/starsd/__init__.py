"""The study of StarSD's table 1: its testbed, the fit to it, and predictions for other N."""
