"""`koordebpf record`: every round of this node into a file."""

from koordebpf.cli.record.command import record

__all__ = ["record"]
