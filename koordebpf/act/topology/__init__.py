"""Writes the NodeResourceTopology of this node."""
