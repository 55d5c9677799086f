"""`koordebpf report`: one page for one incident."""

from koordebpf.cli.report.command import report

__all__ = ["report"]
