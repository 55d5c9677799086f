"""Pages about all nodes of a cluster, for `kubectl koordebpf`."""
