"""Measure the node: memory, CPU, stalls and pods, one module per collector."""
