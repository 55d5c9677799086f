"""Metrics with a pod's name in a label, in a bounded number of series."""
