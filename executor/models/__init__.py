"""Models and drafts: families, layers, heads, caches, samplers; no process and no message."""
