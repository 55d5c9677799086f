"""As many open files as the process may have."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import os, resource
from koordebpf.kernel.host.protection import open_all_files
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 300))
assert open_all_files() == 300
files = [os.open("/dev/null", os.O_RDONLY) for _ in range(200)]
print(len(files), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_soft_limit_is_raised_to_the_hard_one():
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["200", "300", "300"]
