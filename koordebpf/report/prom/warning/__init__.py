"""Metrics of the hooks around evictions, and of warnings before them."""
