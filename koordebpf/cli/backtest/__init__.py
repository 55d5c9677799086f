"""`koordebpf backtest`."""

from koordebpf.cli.backtest.command import backtest

__all__ = ["backtest"]
