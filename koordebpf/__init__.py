"""Protects a Kubernetes node's latency-sensitive pods from its best-effort ones."""

__version__ = "0.1.0"
