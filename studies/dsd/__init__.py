"""DSD's claims, examined: where speculation over slow links pays, and what relaxing it costs."""
