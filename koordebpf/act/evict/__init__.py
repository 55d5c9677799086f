"""Executors: evict through the API server, the container runtime, or a kill of the cgroup."""
