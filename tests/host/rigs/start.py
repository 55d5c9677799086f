"""A node for an agent's start, with a place for its files, and what may stand in the place of each."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.host.rigs.held_node import HeldNode
from tests.support.loads.workloads import Hog
from tests.support.patience import patience

FOREIGN = 12_345  # a user that no file of an agent has
_ROOM = 400 << 10

Fault = Callable[[Path], None]


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.symlink_to("/nowhere/precious")


def _foreign(path: Path) -> None:
    path.touch()
    os.chown(path, FOREIGN, FOREIGN)


def _folder(path: Path) -> None:
    (path / "in it").mkdir(parents=True)


def _garbage(path: Path) -> None:
    path.write_text("{}")


FAULTS: dict[str, Fault] = {
    "fifo": _fifo,
    "link": _link,
    "foreign": _foreign,
    "folder": _folder,
    "garbage": _garbage,
}
TAKE_NOTHING = ("full", "read-only", "foreign")  # why a folder does not
READ = {"fifo", "link", "folder"}  # which keep an agent from what it reads, or writes in place


class Start:
    """A node, a place for an agent's files on a tmpfs of its own, and the agent."""

    def __init__(self, held: HeldNode, folder: Path) -> None:
        self.held = held
        self.run = folder / "run"
        self.run.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_ROOM}", "tmpfs", self.run], check=True)
        self._folder = folder
        self.quota = held.quota_file.read_text()
        self.node = self.run / f"{held.node.path.name}-{held.node.path.stat().st_ino}"
        self.agent: LiveAgent | None = None

    def begin(self, *more: object) -> LiveAgent:
        arguments = self.held.arguments(self._folder)
        gates = ("--feature-gates", "UsageSeries=true", "--feature-gates", "BECPUSuppress=true")
        self.agent = LiveAgent(self._folder, *arguments, "--enforce", *gates, *more)
        return self.agent

    def fill(self) -> None:
        with (self.run / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 4096)
            except OSError:
                return

    def evicts(self) -> None:
        """A hog of more than the node has is killed."""
        assert self.agent is not None
        hog = Hog(self.held.container, 900, hold_s=600)
        try:
            until(lambda: hog.process.poll() is not None, lambda: f"an eviction, but:\n{self.agent and self.agent.log}")
        finally:
            hog.stop()

    def shown(self) -> dict[str, str]:
        """Return the parts of /readyz that do not work, by name."""
        assert self.agent is not None
        _, body = self.agent.get("/readyz")
        return {each["name"]: each["problem"] for each in json.loads(body).get("parts", ()) if each["problem"]}

    def ends_well(self) -> None:
        """It ends with 0 and without a traceback, and what was written is as it was."""
        assert self.agent is not None
        assert self.agent.stop() == 0, self.agent.log
        assert "Traceback" not in self.agent.log
        assert self.held.quota_file.read_text() == self.quota

    def close(self) -> None:
        if self.agent is not None and self.agent.process.poll() is None:
            self.agent.process.kill()
            self.agent.process.wait()
        subprocess.run(["umount", "-l", self.run], check=True)


@contextmanager
def folder_that_takes_nothing(folder: Path, why: str) -> Iterator[None]:
    """Make a folder full, read-only or another user's, until the end."""
    mounts = {"full": "size=4k,nr_inodes=1", "read-only": "ro"}
    if why in mounts:
        subprocess.run(["mount", "-t", "tmpfs", "-o", mounts[why], "tmpfs", folder], check=True)
    else:
        os.chown(folder, FOREIGN, FOREIGN)
    try:
        yield
    finally:
        if why in mounts:
            subprocess.run(["umount", "-l", folder], check=True)


def refused(agent: LiveAgent, *words: str) -> None:
    """It ends with one sentence that has these words, and the exit code of what a person gave."""
    assert agent.process.wait(patience(20)) == 2, agent.log
    *_, last = agent.log.splitlines()
    assert last.startswith("koordebpf: ") and all(each in last for each in words), agent.log
    assert "Traceback" not in agent.log
