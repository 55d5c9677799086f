"""Samples over a window: what collectors write and what rates, averages and percentiles are taken of. Pure."""
