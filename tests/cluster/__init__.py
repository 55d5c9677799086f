"""A real Kubernetes for tests and the demo: control plane on loopback, and a node that is a cgroup."""
