"""The capabilities that deploy/ gives to hooks which reach processes of other users: each is needed, and is enough."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from koordebpf.errors import SupportError
from koordebpf.kernel.proc.tasks import cookie_of
from tests.conftest import OTHER_MACHINE

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
OTHER = 65534
SCORE = """
import sys
from koordebpf.kernel.proc.tasks import change_score
pid = int(sys.argv[1])
try:
    change_score(pid, open(f"/proc/{pid}/cgroup").readline().strip().rpartition("/")[2], 500)
except OSError as error:
    sys.exit(error.errno)
"""
COOKIE = """
import sys
from koordebpf.errors import SupportError
from koordebpf.kernel.proc.tasks import give_new_cookie
try:
    give_new_cookie(int(sys.argv[1]))
except SupportError as error:
    sys.exit(str(error))
"""


@pytest.fixture
def process() -> Iterator[int]:
    """A process of another user."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root, and setpriv of util-linux")
    with subprocess.Popen(["sleep", "600"], user=OTHER, group=OTHER, extra_groups=[]) as process:
        yield process.pid
        process.kill()


def usual() -> list[str]:
    """Return what every agent has."""
    spec = yaml.safe_load((DEPLOY / "base/agent/daemonset.yaml").read_text())["spec"]["template"]["spec"]
    return list(spec["containers"][0]["securityContext"]["capabilities"]["add"])


def given_by(component: str) -> list[str]:
    """Return what a component adds to them."""
    (patch,) = yaml.safe_load((DEPLOY / f"components/{component}/kustomization.yaml").read_text())["patches"]
    return [each["value"] for each in yaml.safe_load(patch["patch"]) if each["path"].endswith("/capabilities/add/-")]


def run(program: str, pid: int, capabilities: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run it as root with these capabilities alone."""
    bounds = ",".join(["-all", *(f"+{each.lower()}" for each in capabilities)])
    command = ["setpriv", f"--bounding-set={bounds}", "--inh-caps=-all", sys.executable, "-c", program, str(pid)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_a_score_of_another_users_process_is_set_with_what_the_component_gives(process: int) -> None:
    file = Path(f"/proc/{process}/oom_score_adj")
    before = file.read_text()
    assert run(SCORE, process, usual()).returncode == errno.EACCES
    assert file.read_text() == before
    done = run(SCORE, process, [*usual(), *given_by("oom-score-adj")])
    assert (done.returncode, done.stderr) == (0, "")
    assert file.read_text() == "500\n"


def test_a_cookie_is_given_to_another_users_process_with_what_the_component_gives(process: int) -> None:
    try:
        cookie_of(process)
    except SupportError as error:
        pytest.skip(f"{OTHER_MACHINE}{error}")
    refused = run(COOKIE, process, usual())
    assert refused.returncode == 1
    assert "deploy/components/core-sched" in refused.stderr
    assert cookie_of(process) == 0
    done = run(COOKIE, process, [*usual(), *given_by("core-sched")])
    assert (done.returncode, done.stderr) == (0, "")
    assert cookie_of(process) != 0
