"""The study of DSD's claims: speculation's gain over slow links, and the cost of relaxing it."""
