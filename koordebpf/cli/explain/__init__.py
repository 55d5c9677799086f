"""`koordebpf explain`: why an agent decided what it did, and what a Node's batch resources are the sum of."""

from koordebpf.cli.explain.command import explain

__all__ = ["explain"]
