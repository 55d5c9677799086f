"""`koordebpf replay`: the rounds of a recording, decided again."""

from koordebpf.cli.replay.command import replay

__all__ = ["replay"]
