"""`koordebpf shadow`: what an agent's shadow configurations came to."""

from koordebpf.cli.shadow.command import shadow

__all__ = ["shadow"]
