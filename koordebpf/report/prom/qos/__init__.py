"""Metrics of QoS strategies: one module each."""
