"""`koordebpf simulate`: recordings under other settings, carried forward."""

from koordebpf.cli.simulate.command import simulate

__all__ = ["simulate"]
