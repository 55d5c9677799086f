"""`koordebpf recording`: what a recording holds, and without names."""

from koordebpf.cli.recording.command import recording

__all__ = ["recording"]
