"""Runs what an operator wants called before and after an eviction: commands and webhooks, never in its way."""
