"""Which programs are compiled for which tests."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from tests import programs
from tests.programs import CLUSTER, CLUSTER_QUICK, of_folder


def test_a_module_gets_what_it_reaches_by_imports_and_no_more() -> None:
    assert of_folder("cluster", ["tests/cluster/test_actions.py"]) == CLUSTER_QUICK
    peers = of_folder("cluster", ["tests/cluster/test_actions.py", "tests/cluster/test_katalyst_plugins.py"])
    assert peers == ("cluster.binaries", "cluster.katalyst_programs")
    assert "cluster.koordinator_programs" in of_folder("cluster", ["tests/cluster/test_instead_of_koordlet.py"])


def test_a_whole_folder_gets_all_of_it_but_a_quick_one_no_image() -> None:
    assert of_folder("cluster") == CLUSTER
    assert of_folder("cluster", quick=True) == CLUSTER_QUICK
    assert of_folder("deploy") == programs.DEPLOY
    assert of_folder("unit") == of_folder("unit", ["tests/unit/test_ledger.py"]) == ()


# A module that starts what runs for a minute, and says its pid.
_BRINGING = """
import subprocess, sys
from tests import programs
code = "import subprocess; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"
programs.signal.signal(programs.signal.SIGTERM, lambda number, _: sys.exit(128 + number))
programs._run([sys.executable, "-c", code])
"""


def test_what_it_started_ends_with_it() -> None:
    process = subprocess.Popen([sys.executable, "-c", _BRINGING], stdout=subprocess.PIPE, cwd=programs._ROOT)
    assert process.stdout is not None
    compiler = int(process.stdout.readline())
    process.terminate()
    assert process.wait(30) == 128 + signal.SIGTERM
    until_s = time.monotonic() + 30
    while Path(f"/proc/{compiler}").exists() and time.monotonic() < until_s:
        time.sleep(0.01)
    assert not Path(f"/proc/{compiler}").exists()
    process.stdout.close()
