"""`koordebpf trace --record` while it has no CPU: its ring holds what comes meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from koordebpf.events.layout import decode
from koordebpf.events.records import CgroupMkdir, CgroupRmdir
from koordebpf.kernel.backends.select import BACKEND_VARIABLE
from koordebpf.store.recording import read_recording
from tests.support.patience import patience

pytestmark = [
    pytest.mark.usefixtures("require_root"),
    pytest.mark.skipif(
        os.environ.get(BACKEND_VARIABLE) == "files", reason="not this kind of machine: there is no ring to be filled"
    ),
]

# Twice as many records, more than a ring of 256 KiB has room for: 72 bytes each, with the ring's own 8.
N = 3000


def wait_for(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + patience(60)
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_comes_while_it_waits_for_its_cpu_is_recorded(memory_cgroup: Path, tmp_path: Path) -> None:
    path = tmp_path / "node.rec"
    command = [sys.executable, "-m", "koordebpf", "trace", "--record", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as recorder:
        try:
            wait_for(lambda: recorder.poll() is not None or (path.exists() and path.stat().st_size > 0))
            assert recorder.poll() is None
            recorder.send_signal(signal.SIGSTOP)
            for i in range(N):
                (memory_cgroup / f"pod{i}").mkdir()
                (memory_cgroup / f"pod{i}").rmdir()
            recorder.send_signal(signal.SIGCONT)
            recorder.terminate()
            _, words = recorder.communicate(timeout=patience(60))
        finally:
            recorder.kill()
    assert recorder.returncode == 0, words
    recording = read_recording(path)
    assert recording.summary is not None and recording.summary.lost == 0, words
    own = memory_cgroup.stat().st_ino
    seen = Counter(type(each) for each in map(decode, recording) if getattr(each, "parent_id", None) == own)
    assert seen == {CgroupMkdir: N, CgroupRmdir: N}
