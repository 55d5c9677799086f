"""A tenant's `subPath` is the root of a mount that the kubelet makes: the agent starts and restores beside any."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.apiserver import until
from tests.host.live_agent import ROOT, LiveAgent
from tests.host.rigs.held_node import HeldNode
from tests.support.values.sub_paths import SUB_PATHS

_BIND = 'mount --bind "$1" "$2" && shift 2 && exec "$@"'


def beside_a_mount(folder: Path, name: bytes) -> tuple[str, ...]:
    """Return the command that runs others in a mount namespace with this bind mount, as the kubelet makes it."""
    if shutil.which("unshare") is None:
        pytest.skip("not this kind of machine: no unshare")
    volume, place = os.fsencode(folder) + b"/volumes/data/" + name, folder / "volume-subpaths/0"
    os.makedirs(volume)  # noqa: PTH103 - its name is no text
    place.mkdir(parents=True)
    return "unshare", "-m", "sh", "-c", _BIND, "sh", os.fsdecode(volume), str(place)


@pytest.mark.parametrize(
    "name", [SUB_PATHS[0], *(pytest.param(name, marks=pytest.mark.slow) for name in SUB_PATHS[1:])]
)
def test_commands_read_the_node(tmp_path: Path, name: bytes) -> None:
    prefix = [*beside_a_mount(tmp_path, name), sys.executable, "-m", "koordebpf"]
    restore = [*prefix, "restore", "--run-dir", str(tmp_path / "run"), "--dry-run"]
    assert subprocess.run(restore, cwd=ROOT, capture_output=True, check=False).returncode == 0
    said = subprocess.run([*prefix, "doctor"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "koordebpf: " not in said.stderr
    assert "Traceback" not in said.stderr
    assert "BACKEND" in said.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", SUB_PATHS[:3])
def test_an_agent_starts_and_what_it_leaves_is_restored(held: HeldNode, tmp_path: Path, name: bytes) -> None:
    before, prefix = held.quota_file.read_bytes(), beside_a_mount(tmp_path, name)
    with LiveAgent(tmp_path, *held.arguments(tmp_path), "--enforce", before=prefix) as agent:
        until(lambda: held.quota_file.read_bytes() != before, lambda: f"a quota, but: {agent.log}")
        agent.stop(signal.SIGKILL)
    assert held.quota_file.read_bytes() != before
    command = [*prefix, sys.executable, "-m", "koordebpf", "restore", "--run-dir", str(tmp_path / "run")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert held.quota_file.read_bytes() == before
