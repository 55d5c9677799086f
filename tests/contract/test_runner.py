"""The test runner's own promises: nothing required is skipped in silence, and nothing that died counts as passed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    tests = tmp_path / "tests"
    for name in ("host", "unit"):
        (tests / name).mkdir(parents=True)
    for name in ("conftest.py", "run.py", "again.txt"):
        shutil.copy(TESTS / name, tests)
    return tests


def run(tests: Path, require: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(tests / "run.py"), *arguments],
        env=os.environ | {"KOORDEBPF_REQUIRE": require}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def one_test(body: str) -> str:
    return f"import os, pytest\ndef test_it():\n    {body}\n"


@pytest.mark.parametrize(
    ("require", "reason", "total"),
    [
        ("unit", "no time", "0 passed, 1 failed, 0 skipped"),
        ("unit", "not this kind of machine: v2 only", "0 passed, 0 failed, 1 skipped"),
        ("host", "no time", "0 passed, 0 failed, 1 skipped"),
    ],
)
def test_a_required_skip_fails_unless_it_is_for_another_machine(folders, require, reason, total):
    (folders / "unit" / "test_skip.py").write_text(one_test(f"pytest.skip({reason!r})"))
    done = run(folders, require, "unit")
    assert done.stdout.splitlines()[-1] == total
    assert done.returncode == 1, "nothing passed"


@pytest.mark.parametrize(
    "body",
    ["os._exit(0)", "os.abort()", "assert False", "raise KeyboardInterrupt"],
    ids=lambda body: body.split("(")[0],
)
def test_what_dies_or_fails_is_counted(folders, body):
    (folders / "unit" / "test_death.py").write_text(one_test(body))
    done = run(folders, "", "unit")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"


def test_a_test_that_passes_is_counted(folders):
    (folders / "unit" / "test_good.py").write_text(one_test("pass"))
    done = run(folders, "", "unit")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 passed, 0 failed, 0 skipped")


FAILS_SO_OFTEN = """
from pathlib import Path
def test_it(tries=Path(__file__).with_suffix(".tries")):
    tried = len(tries.read_text()) if tries.exists() else 0
    tries.write_text("x" * (tried + 1))
    assert tried >= {often}
"""


@pytest.mark.parametrize(
    ("folder", "often", "ends"),
    [
        ("host", 1, ["failed once, passed when tried again: host: test_try::test_it", "1 passed, 0 failed, 0 skipped"]),
        ("host", 2, ["failed: host: test_try::test_it", "0 passed, 1 failed, 0 skipped"]),
        ("unit", 1, ["failed: unit: test_try::test_it", "0 passed, 1 failed, 0 skipped"]),
    ],
)
def test_what_fails_among_others_is_tried_once_more_and_told(folders, folder, often, ends):
    (folders / folder / "test_try.py").write_text(FAILS_SO_OFTEN.format(often=often))
    done = run(folders, "", folder)
    if "left out: host" in done.stdout:
        pytest.skip("host tests cannot run here")
    assert done.stdout.splitlines()[-2:] == ends


def test_an_unknown_folder_is_refused_by_name(folders):
    done = run(folders, "", "units")
    assert done.returncode == 2
    assert "units" in done.stderr


# Somebody who is not root, whoever runs this.
AS_NOBODY = """
import os, runpy, sys
os.geteuid = lambda: 1000
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_what_a_cluster_needs_and_is_not_here_is_told(folders):
    (folders / "unit" / "test_good.py").write_text(one_test("pass"))
    command = [sys.executable, "-c", AS_NOBODY, str(folders / "run.py"), "cluster", "unit"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    *_, left_out, total = done.stdout.splitlines()
    assert left_out.startswith("left out: cluster: needs root")
    assert total == "1 passed, 0 failed, 0 skipped"
