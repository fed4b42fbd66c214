"""The study of FlowSpec's table (2025): fitted to a few known cells, predicted elsewhere."""
