"""Cgroups: hierarchies, the tree, control files, freezer, reclaim, kill."""
