"""The agent while its sinks block: it evicts in time, answers its probes, and ends on SIGTERM."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.report.pages.explain import decode_audit
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.support.hung import CannotHang, FullPipe, hung_filesystem
from tests.support.loads.workloads import Hog
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

_DISK_BYTES = 64 << 10
_HOG_MIB = 240  # of 256: it is killed long before, or not at all
_END_S = 2.0

Start = Callable[..., LiveAgent]


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 256 * MIB) as node:
        yield node


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def pipe(stack: ExitStack) -> FullPipe:
    pipe = FullPipe()
    stack.callback(pipe.close)
    return pipe


@pytest.fixture
def start(node: NodeCgroup, tmp_path: Path, stack: ExitStack, pipe: FullPipe) -> Start:
    """Return a function that starts an agent that acts, with both outputs in the pipe."""

    def start(audit: Path | str, *arguments: object) -> LiveAgent:
        manifest = node.write_manifest(tmp_path / "pods.json")
        given = ["--pods", manifest, "--node-cgroup", node.path, "--executor", "cgroup", "--enforce", "--audit", audit]
        agent = LiveAgent(tmp_path, *given, *arguments, output=pipe.writing)
        stack.callback(agent.__exit__, None, None, None)
        return agent

    return start


def small_disk(path: Path, stack: ExitStack) -> Path:
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", path]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"{OTHER_MACHINE}no tmpfs can be mounted: {mounted.stderr.strip()}")
    stack.callback(subprocess.run, ["umount", path], check=True)
    return path


def fill(disk: Path) -> None:
    (disk / "ballast").write_bytes(bytes(_DISK_BYTES - 4096))


def hang(folder: Path, stack: ExitStack) -> Path:
    try:
        return stack.enter_context(hung_filesystem(folder))
    except CannotHang as error:
        pytest.skip(f"{OTHER_MACHINE}{error}")


def protects_and_ends(agent: LiveAgent, container: Path) -> None:
    """Let a hog eat; check that it is killed in time, that the probes answer, and that SIGTERM ends the agent."""
    hog = Hog(container, _HOG_MIB, rate_mib_s=400)
    hog.story()
    assert hog.process.returncode == -signal.SIGKILL
    until(
        lambda: agent.metric('koordebpf_evictions_total{executor="cgroup",reason="BEMemoryEvict",result="done"}') == 1,
        "the eviction is counted",
    )
    assert agent.get("/healthz")[0] == 200
    since = time.monotonic()
    assert agent.stop(timeout_s=_END_S) == 0
    print(f"ended within {time.monotonic() - since:.2f} s")


@pytest.mark.slow
@pytest.mark.parametrize("what", ["full fifo", "stdout", "full disk", "fifo", "hung disk", "disk that hangs later"])
def test_a_hog_is_evicted_without_a_reader_of_log_and_audit(
    node: NodeCgroup, start: Start, pipe: FullPipe, stack: ExitStack, tmp_path: Path, what: str
) -> None:
    (container,) = node.add_pod("hog", priority=5000)
    folder = tmp_path / "audit"
    audit: Path | str = folder / "audit.jsonl"
    if what == "full disk":
        fill(small_disk(folder, stack))
    else:
        folder.mkdir()
    if what == "stdout":
        audit = "-"
    elif "fifo" in what:
        os.mkfifo(audit)
        if what == "full fifo":
            opened = os.open(audit, os.O_RDWR | os.O_NONBLOCK)
            stack.callback(os.close, opened)
            while True:
                try:
                    os.write(opened, bytes(4096))
                except BlockingIOError:
                    break
    elif what == "hung disk":
        hang(folder, stack)
    agent = start(audit).becomes_ready()
    if what == "disk that hangs later":
        hang(folder, stack)
    protects_and_ends(agent, container)
    assert os.get_blocking(pipe.writing)  # it is not the agent's alone


def test_what_waited_is_written_in_order_once_there_is_a_reader(
    node: NodeCgroup, start: Start, pipe: FullPipe, tmp_path: Path
) -> None:
    (container,) = node.add_pod("hog", priority=5000)
    agent = start("-").becomes_ready()
    hog = Hog(container, _HOG_MIB, rate_mib_s=400)
    hog.story()
    until(lambda: agent.metric("koordebpf_audit_waiting") >= 1, "the audit line waits")
    until(lambda: agent.metric("koordebpf_log_waiting") >= 1, "log lines wait")
    agent.process.send_signal(signal.SIGTERM)
    lines = pipe.drain().splitlines()[1:]  # the first is what the pipe was full of
    assert agent.process.wait(patience(10)) == 0
    records, problems = decode_audit(b"\n".join(line for line in lines if line.startswith(b"{")) + b"\n", "stdout")
    assert problems == ()
    assert [outcome.name for record in records for outcome in record.outcomes] == ["hog"]
    said = [line.split(b" ", 3)[-1] for line in lines if not line.startswith(b"{")]
    order = [next(at for at, line in enumerate(said) if line.startswith(word)) for word in (b"watching", b"evicting")]
    assert order == sorted(order)
    assert said[-1] == b"stopped: everything is detached"
    assert not any(b"lost" in line for line in said)


def test_an_error_that_ends_the_agent_does_not_keep_it(tmp_path: Path, stack: ExitStack) -> None:
    pipe = FullPipe(free_bytes=16)
    stack.callback(pipe.close)
    arguments = ("--source", "kubelet", "--node-name", "n1", "--kubelet-url", "https://127.0.0.1:1")
    agent = stack.enter_context(LiveAgent(tmp_path, *arguments, output=pipe.writing))
    assert agent.process.wait(patience(15)) == 2


def test_an_error_that_ends_the_agent_is_said_last(tmp_path: Path) -> None:
    arguments = ("--source", "kubelet", "--node-name", "n1", "--kubelet-url", "https://127.0.0.1:1")
    with LiveAgent(tmp_path, *arguments, "--feature-gates", "PerCPUMetric=true") as agent:
        assert agent.process.wait(patience(15)) == 2
        first, last = agent.log.splitlines()
    assert "PerCPUMetric" in first
    assert last.startswith("koordebpf: --pods: source kubelet needs a file with the NodeSLO")


@pytest.mark.slow
def test_an_eviction_does_not_wait_for_room_in_run(
    node: NodeCgroup, start: Start, stack: ExitStack, tmp_path: Path
) -> None:
    (container,) = node.add_pod("hog", priority=5000)
    run = small_disk(tmp_path / "tiny", stack)
    agent = start("-", "--run-dir", run).becomes_ready()
    (run / "ballast").write_bytes(bytes(4096))
    with (run / "ballast").open("ab", buffering=0) as ballast:
        try:
            while ballast.write(bytes(4096)):
                pass
        except OSError:
            pass
    protects_and_ends(agent, container)
