"""The keyboard of `top`, where there is none."""

from __future__ import annotations

import os
import pty
import sys
import termios

import pytest

from koordebpf.tools.top.screen import Keyboard


def test_the_terminal_of_another_session_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()  # which is no process's controlling terminal
    before = termios.tcgetattr(slave)
    with os.fdopen(slave, encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with Keyboard() as keyboard:
            assert keyboard.fileno() is None
            assert termios.tcgetattr(slave) == before
    os.close(master)


def test_no_standard_input_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with Keyboard() as keyboard:
        assert keyboard.fileno() is None
