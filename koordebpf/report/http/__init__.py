"""Metrics, probes and the decisions over HTTP, from a thread that no client can starve."""
