import logging
import sys
import threading
from collections.abc import Iterator

import pytest

import tests.support.values.profiles  # noqa: F401
from koordebpf.report.log.formats import log_sink


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Set up logging as the agent does, and take it down again."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    hooks = (sys.excepthook, threading.excepthook, sys.unraisablehook)
    yield
    if made := log_sink():
        made.close(1)
    root.handlers[:] = before
    root.setLevel(level)
    logging.captureWarnings(False)
    sys.excepthook, threading.excepthook, sys.unraisablehook = hooks
