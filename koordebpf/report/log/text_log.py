"""Log lines for people: one line per record, whatever tenants named; a traceback stands indented below it."""

from __future__ import annotations

import logging

from koordebpf.printable import printable


class TextFormatter(logging.Formatter):
    """Formats time, level and message; nothing in a line is obeyed by a terminal, and nothing forges a second one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname).1s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and an exception's lines two further in."""
        record.message = record.getMessage()
        record.asctime = self.formatTime(record)
        lines = [printable(self.formatMessage(record))]
        if record.exc_info:
            lines += [f"  {printable(line)}" for line in self.formatException(record.exc_info).split("\n")]
        return "\n".join(lines)
