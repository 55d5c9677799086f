"""Measures the memory of the node, its pods and their cgroups."""
