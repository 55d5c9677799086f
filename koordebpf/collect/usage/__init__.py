"""Measures what node, pods, containers and host applications use, once a second, for the node's series."""
