"""Single requests: evictions, Events, taints, Leases, NodeSLOs, the container runtime."""
