"""What coverage is measured of: the package of this checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import cover


@pytest.mark.slow
def test_a_copy_of_the_package_that_was_run_and_is_gone_is_not_measured(tmp_path: Path) -> None:
    folder, copy = tmp_path / "measured", tmp_path / "copy"
    (copy / "koordebpf").mkdir(parents=True)
    for name in ("__init__.py", "units.py"):
        shutil.copy(cover.ROOT / "koordebpf" / name, copy / "koordebpf")
    environment = os.environ | cover.environment(folder)
    for at in (copy, cover.ROOT):
        command = [sys.executable, "-c", "import koordebpf.units; print(koordebpf.__file__)"]
        done = subprocess.run(command, cwd=at, env=environment, capture_output=True, text=True, check=True)
        assert Path(done.stdout.strip()).is_relative_to(at)
    shutil.rmtree(copy)
    found = cover.measured(folder)
    assert found["units.py"]["summary"]["covered_lines"] > 0
    assert found["errors.py"]["summary"]["covered_lines"] == 0, "what no test reaches counts"
