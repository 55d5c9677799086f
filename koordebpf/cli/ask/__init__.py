"""`koordebpf ask`: what the agent on this node answers, as it says it."""

from koordebpf.cli.ask.command import ask

__all__ = ["ask"]
