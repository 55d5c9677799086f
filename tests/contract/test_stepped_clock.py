"""The clocks that host tests set, in a checkout whose path has a space."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.support.loads.workloads import BUILD
from tests.support.stepped_clock import SteppedClock


def test_clocks_step_in_a_checkout_with_a_space_in_its_path(tmp_path: Path) -> None:
    library = tmp_path / "a checkout"
    library.mkdir()
    shutil.copy(BUILD / "stepped_clock.so", library)
    clock = SteppedClock(tmp_path / "the clock", library)
    clock.step(realtime_s=86400)
    command = [sys.executable, "-c", "import time; print(time.time())"]
    done = subprocess.run(command, env=os.environ | clock.environ, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert 86400 - 60 < float(done.stdout) - time.time() < 86400 + 60
