"""What applications in latency-sensitive pods feel of best-effort pods on the same node: `make felt`."""
