"""Prometheus metrics, built at the scrape."""
