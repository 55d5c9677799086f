"""Log lines as JSON, one object a line, through the standard library's logging."""

from __future__ import annotations

import logging
import time
from typing import Any, TextIO

from koordebpf.report.printable import json_bytes
from koordebpf.report.text_log import TextFormatter

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Turns a record into an object of time, level, logger and message; `extra` follows under its own names."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{stamp}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update({key: value for key, value in vars(record).items() if key not in _STANDARD and key not in line})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json_bytes(line, enc_hook=str).decode()


def set_up_logging(*, json: bool, verbose: bool = False, stream: TextIO | None = None) -> None:
    """Send every log line to `stream` (standard error), as JSON or for people."""
    sink = logging.StreamHandler(stream)
    sink.setFormatter(JsonFormatter() if json else TextFormatter())
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[sink], force=True)
