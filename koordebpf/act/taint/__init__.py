"""Taint the node, or set a condition, while memory evictions are in progress."""
