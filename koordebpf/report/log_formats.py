"""Log lines as JSON, one object a line, through the standard library's logging."""

from __future__ import annotations

import logging
import sys
import threading
import time
from functools import partial
from types import TracebackType
from typing import Any

from koordebpf.printable import json_bytes, printable, printable_text
from koordebpf.store.line_sink import LineSink, write_whole

_log = logging.getLogger("koordebpf")
_STDERR = 2
_EXIT_S = 0.5  # Why: with the audit's half a second a second, with or without a reader
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


# Log lines for people: one line per record, whatever tenants named; a traceback stands indented below it.


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


class QueuedHandler(logging.Handler):
    """Formats a line in the thread that says it and leaves the writing to a sink, so that `emit` never waits.

    The standard library's QueueListener neither counts what it drops nor ends while its stream takes nothing.
    """

    def __init__(self, sink: LineSink) -> None:
        super().__init__()
        self.sink = sink

    def emit(self, record: logging.LogRecord) -> None:
        """Queue one line."""
        try:
            line = self.format(record)
        except Exception as error:  # logging's own way is a traceback on standard error, which may block
            line = printable(f"a log line of {record.name} cannot be formatted: {error!r}: {record.msg!r}")
        self.sink.put(line.encode("utf-8", "backslashreplace") + b"\n")

    def flush(self) -> None:
        """Wait for what is queued, for half a second at most; logging does so at exit."""
        self.sink.flush(_EXIT_S)


def set_up_logging(*, json: bool, verbose: bool = False) -> None:
    """Send every log line to standard error, as JSON or for people, by a thread of its own.

    Also what Python would print there itself, from whichever thread: warnings, and tracebacks of errors that no code
    catches.
    """
    sink = LineSink(partial(write_whole, _STDERR), "log", recovered=_report_lost)
    handler = QueuedHandler(sink)
    handler.setFormatter(JsonFormatter() if json else TextFormatter())
    logging.basicConfig(level=logging.DEBUG if verbose else logging.INFO, handlers=[handler], force=True)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    threading.excepthook = lambda hooked: _log_uncaught(
        hooked.exc_type, hooked.exc_value, hooked.exc_traceback, f"thread {hooked.thread and hooked.thread.name}"
    )
    sys.unraisablehook = lambda hooked: _log_uncaught(
        hooked.exc_type, hooked.exc_value, hooked.exc_traceback, hooked.err_msg or "an error that cannot be caught"
    )
    sink.start()


def log_sink() -> LineSink | None:
    """Return where log lines wait to be written; None: logging is not set up."""
    return next((each.sink for each in logging.getLogger().handlers if isinstance(each, QueuedHandler)), None)


def write_last(text: str) -> bool:
    """Write a bare line after every log line, and wait half a second for it; False: logging is not set up."""
    sink = log_sink()
    if sink is None:
        return False
    sink.put(printable_text(text).encode() + b"\n")
    sink.flush(_EXIT_S)
    return True


def _report_lost(lines: int) -> None:
    _log.warning("%d log lines were lost: standard error was not read for too long", lines)


def _log_uncaught(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None, where: str = "the main thread"
) -> None:
    _log.critical("%s ended unexpectedly", where, exc_info=(kind, error or kind(), trace))
