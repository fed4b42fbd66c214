"""StarSD's table 1, reproduced: its testbed, what is fitted to it, and what follows for N."""
