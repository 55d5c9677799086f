"""One process at a time acts on a node."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from koordebpf.collect.scope import NodeScope
from koordebpf.errors import ConfigError
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.store.node_lock import LockHeld, NodeLock, StandBy, is_awaited, is_held

HOLD = """
import sys, time
from pathlib import Path
from koordebpf.store.node_lock import NodeLock
from tests.unit.agent.test_sole_agent import machine
NodeLock(Path(sys.argv[1]), machine())
print("held", flush=True)
time.sleep(600)
"""


def machine() -> NodeScope:
    return NodeScope("machine", MemoryHierarchy(2, Path("/sys/fs/cgroup"), None), Path("/sys/fs/cgroup"), 1)


def nested(name: str, root_id: int) -> NodeScope:
    path = Path("/sys/fs/cgroup") / name
    return NodeScope("cgroup", MemoryHierarchy(2, Path("/sys/fs/cgroup"), None), path, root_id)


def test_the_second_process_learns_who_holds_the_lock(tmp_path: Path) -> None:
    with NodeLock(tmp_path, machine()):
        with pytest.raises(
            ConfigError, match=f"process {os.getpid()} of .* acts on this node already: end it"
        ) as reported:
            NodeLock(tmp_path, machine())
        assert reported.value.path == "--enforce"
    assert list(tmp_path.iterdir()) == []
    NodeLock(tmp_path, machine()).close()


def test_a_full_disk_keeps_no_agent_from_acting(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        agent = NodeLock(tmp_path, machine())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with agent, pytest.raises(ConfigError, match="another process acts on this node already"):
        NodeLock(tmp_path, machine())


def test_another_node_of_the_same_machine_is_another_lock(tmp_path: Path) -> None:
    with NodeLock(tmp_path, nested("kind/node", 7)):
        for other in (machine(), nested("other/node", 8)):
            NodeLock(tmp_path, other).close()
        with pytest.raises(ConfigError):
            NodeLock(tmp_path, nested("kind/node", 7))


def test_a_killed_one_leaves_no_obstacle(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    with holder.stdout:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=f"process {holder.pid} of"):
            NodeLock(tmp_path, machine())
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert (tmp_path / "machine" / "lock").exists()
    NodeLock(tmp_path, machine()).close()


@pytest.mark.slow
def test_it_is_never_held_twice_while_many_come_and_go(tmp_path: Path) -> None:
    held, refused, twice = 0, 0, 0
    inside = threading.Semaphore(1)

    def come_and_go() -> None:
        nonlocal held, refused, twice
        for _ in range(200):
            try:
                with NodeLock(tmp_path, machine()):
                    if inside.acquire(blocking=False):
                        held += 1
                        inside.release()
                    else:
                        twice += 1
            except ConfigError:
                refused += 1

    threads = [threading.Thread(target=come_and_go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (held + refused, twice) == (1_600, 0)
    assert held and refused
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_says_which(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--run-dir: '.*/file/machine': must be writable"):
        NodeLock(tmp_path / "file", machine())


class TestStandBy:
    def test_it_has_the_lock_once_the_other_one_releases_it(self, tmp_path: Path) -> None:
        reported = threading.Event()
        with NodeLock(tmp_path, machine()) as first:
            assert not is_awaited(first.folder)
            next_one = StandBy(tmp_path, machine(), reported.set)
            assert is_awaited(first.folder)
            assert next_one.sole is None
        assert reported.wait(10)
        next_one.close()
        assert next_one.sole is not None
        assert (is_held(next_one.folder), is_awaited(next_one.folder)) == (True, False)
        next_one.sole.close()
        assert list(tmp_path.iterdir()) == []

    def test_it_has_it_once_the_other_one_is_killed(self, tmp_path: Path) -> None:
        reported = threading.Event()
        holder = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
        assert holder.stdout is not None
        with holder.stdout:
            assert holder.stdout.readline() == "held\n"
            next_one = StandBy(tmp_path, machine(), reported.set)
            holder.kill()
            holder.wait()
        assert reported.wait(10)
        next_one.close()
        assert next_one.sole is not None
        next_one.sole.close()

    def test_one_that_is_ended_first_takes_nothing(self, tmp_path: Path) -> None:
        with NodeLock(tmp_path, machine()) as first:
            next_one = StandBy(tmp_path, machine(), lambda: pytest.fail("the lock is not free"))
            next_one.close()
            assert not is_awaited(first.folder)
        assert next_one.sole is None
        assert list(tmp_path.iterdir()) == []

    def test_there_is_one_at_a_time(self, tmp_path: Path) -> None:
        with NodeLock(tmp_path, machine()):
            next_one = StandBy(tmp_path, machine(), lambda: None)
            with pytest.raises(LockHeld, match=f"process {os.getpid()} of .* stands by on this node already"):
                StandBy(tmp_path, machine(), lambda: None)
            next_one.close()
