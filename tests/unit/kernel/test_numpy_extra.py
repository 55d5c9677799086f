"""numpy is an extra: it is imported only for full speed, and where it is missing the error says what to install."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from koordebpf.errors import SupportError
from koordebpf.events.columns import dtype_of
from koordebpf.kernel.bpf.ring import RingPages, require_numpy


def test_no_module_imports_it_before_it_is_needed() -> None:
    code = (
        "import sys, koordebpf.tools.record, koordebpf.store.recording, koordebpf.events.columns;"
        "print('numpy' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[3], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_without_it_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)  # as if it were not installed
    with Path(os.devnull).open() as file:
        for use in (require_numpy, lambda: RingPages(file.fileno()), lambda: dtype_of.__wrapped__("koord_head")):
            with pytest.raises(SupportError, match=r"pip install 'koordebpf\[record\]'"):
                use()
