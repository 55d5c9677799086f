"""Measures the CPUs of the node, and which of them pods may use."""
