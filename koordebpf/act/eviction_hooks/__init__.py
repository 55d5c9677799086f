"""Runs what an operator wants called before and after an eviction: webhooks, never in its way."""
