"""What servers leave behind when the one who started them is killed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.binaries import Binaries
from tests.contract.apiserver import until

_ROOT = Path(__file__).parents[2]
_STARTS = """
import json, sys, time
from pathlib import Path
from tests.cluster.control_plane import ControlPlane
plane = ControlPlane(Path(sys.argv[1]))
print(json.dumps([str(plane.folder), plane.pids()]), flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_no_server_outlives_a_killed_test_run(binaries: Binaries) -> None:
    command = [sys.executable, "-c", _STARTS, str(binaries.kubernetes)]
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True) as starter:
        try:
            assert starter.stdout is not None
            folder, pids = json.loads(starter.stdout.readline())
        finally:
            starter.kill()
    shutil.rmtree(folder)
    assert len(pids) == 3
    until(lambda: not any(map(is_running, pids)), "the servers end")


def is_running(pid: int) -> bool:
    try:
        # A process that is not reaped yet is dead: its state is Z.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
