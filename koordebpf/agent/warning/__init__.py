"""Warnings before evictions: opens the hooks around them and what the forecast expects."""
