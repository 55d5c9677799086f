"""`koordebpf completion`: what a shell completes commands and options with."""

from koordebpf.cli.completion.command import completion

__all__ = ["completion"]
