"""Batch and mid resources of all Nodes, computed and written, in a cluster where no Koordinator manager does it."""
