"""What goes wrong with the agent as a process: killed, stopped, in a storm of forks; and objects of another build."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.errors import SupportError
from koordebpf.events.layout import decode_stall, decode_totals
from koordebpf.kernel.backends.select import wanted_backend
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy, cgroup_id
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.host.variants import use_changed_programs
from tests.support.bpf_ids import OtherMap, held_by
from tests.support.loads.storms import Storm, can_count
from tests.support.loads.workloads import BUILD, Hog
from tests.support.nodes import MIB, NodeCgroup
from tests.support.tracefs import NO_TRACEFS

N = 23
STORM_MS = 600_000  # longer than any test: it is stopped
FORKS, ALIVE, FORK_MS = 2000, 200, 20
START_S = 120  # during a storm
MAX_GROWTH_BYTES = 8 * MIB  # a whole ring of records that are decoded at once is some of them
STALLS = 'koordebpf_pod_stall_seconds_total{namespace="default",pod="storm",scope="limit"}'

Start = Callable[..., LiveAgent]


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 256 * MIB) as node:
        yield node


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    return tmp_path / "pods.json"


@pytest.fixture
def start(node: NodeCgroup, manifest: Path, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts an agent on the node with its pods as they are then."""
    agents: list[LiveAgent] = []

    def start(*arguments: object) -> LiveAgent:
        node.write_manifest(manifest)
        agents.append(LiveAgent(tmp_path, "--pods", manifest, "--node-cgroup", node.path, *arguments))
        agents[-1].said(" I watching ", START_S)
        return agents[-1].becomes_ready()

    yield start
    for agent in agents:
        agent.__exit__(None, None, None)


def attributed(agent: LiveAgent) -> float:
    return agent.metric('koordebpf_pods{state="attributed"}')


def without_pod(agent: LiveAgent) -> float:
    return agent.metric('koordebpf_pods{state="without_pod"}')


def remove_pod(node: NodeCgroup, name: str) -> None:
    path = node.pod_paths.pop(name)
    for child in [each for each in path.iterdir() if each.is_dir()]:
        child.rmdir()
    path.rmdir()
    node.pods[:] = [pod for pod in node.pods if pod["metadata"]["name"] != name]


# The recorder opens a shard and its index with the first round of each of three paces, whenever that is.
RECORDER_FILES = 6


def open_fds(pid: int) -> Counter[str]:
    links: Counter[str] = Counter()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # one that was closed meanwhile
            links[str(link.readlink())] += 1
    recorded = [name for name in links if "/recorder/" in name]
    assert len(recorded) <= RECORDER_FILES, recorded
    return Counter({name: count for name, count in links.items() if name not in recorded})


@pytest.mark.slow
def test_after_sigkill_nothing_is_left_and_the_next_agent_counts_from_zero(start: Start, node: NodeCgroup) -> None:
    if not can_count():
        pytest.skip(NO_TRACEFS)
    (container,) = node.add_pod("storm")
    storm = Storm(container, STORM_MS)
    try:
        first = start()
        held = held_by(first.process.pid)
        if wanted_backend() == "files":
            assert not held
            pytest.skip(f"{OTHER_MACHINE}the files backend leaves nothing in the kernel and counts no single reclaim")
        assert held.prog and held.map and held.link
        until(lambda: first.metric(STALLS) > 0.5, "half a second of stall")
        assert first.stop(signal.SIGKILL) == -signal.SIGKILL
        until(lambda: not held.alive(), "the kernel has freed all of it")

        started_s = time.monotonic()
        second = start()
        pid = second.process.pid
        totals, stalls = OtherMap(pid, "totals"), OtherMap(pid, "stalls")
        early = decode_totals(totals.first())
        until(lambda: second.metric(STALLS) > 0, "its stalls")
        rows = {row.cgroup_id: row for row in (decode_stall(*item) for item in stalls.items())}
        later = decode_totals(totals.first())
        totals.close()
        stalls.close()
        stalled_s = second.metric(STALLS)
        elapsed_s = time.monotonic() - started_s
        # One task cannot stall for longer than there was time since this agent began, however long it had before.
        row = rows[cgroup_id(container)]
        assert 0 < row.limit.total_ns <= row.limit.count * row.limit.max_ns
        assert row.limit.total_ns / 1e9 <= elapsed_s
        assert 0 < stalled_s <= elapsed_s
        assert early.episodes <= row.limit.count <= later.episodes + 1  # its last end may be between the two sums
        assert "Traceback" not in second.log
        assert second.stop() == 0
    finally:
        storm.stop()


@pytest.mark.slow
def test_an_agent_that_was_stopped_catches_up_and_decides_on_what_is_now(start: Start, node: NodeCgroup) -> None:
    (container,) = node.add_pod("hog", priority=5000)
    node.add_pod("other")
    agent = start("--executor", "cgroup", "--enforce")
    for _ in range(2):
        # Stopped for more than 3 s, while the node passes its threshold and comes back, and a pod is born and dies.
        agent.process.send_signal(signal.SIGSTOP)
        hog = Hog(container, 200, hold_s=3)
        hog.wait_for("done")
        node.add_pod("passing")
        remove_pod(node, "passing")
        hog.story()
        until(lambda: node.usage_bytes() < 100 * MIB, "the memory is back")
        agent.process.send_signal(signal.SIGCONT)
        ticks = agent.metric("koordebpf_ticks_total")
        until(lambda ticks=ticks: agent.metric("koordebpf_ticks_total") >= ticks + 2, "the next ticks")
        agent.becomes_ready()
        assert (attributed(agent), without_pod(agent)) == (2, 0)
    assert agent.plans() == []
    # A pod that is still there when the agent continues is found at once.
    agent.process.send_signal(signal.SIGSTOP)
    hog = Hog(container, 200, hold_s=60)
    born = node.add_pod("born")
    node.write_manifest(_manifest_of(agent))
    hog.wait_for("done")
    agent.process.send_signal(signal.SIGCONT)
    plan = agent.has_plan()
    assert [outcome["uid"] for outcome in plan["outcomes"]] == [node.pods[0]["metadata"]["uid"]]
    hog.story()
    assert hog.process.returncode == -signal.SIGKILL
    until(lambda: attributed(agent) == 3, f"the pod of {born[0]}")
    assert "Traceback" not in agent.log
    assert agent.stop() == 0


def _manifest_of(agent: LiveAgent) -> Path:
    arguments = [str(each) for each in agent.process.args]  # type: ignore[union-attr]
    return Path(arguments[arguments.index("--pods") + 1])


def test_a_storm_of_forks_while_pods_come_and_go_makes_the_agent_no_bigger(
    start: Start, node: NodeCgroup, manifest: Path
) -> None:
    (container,) = node.add_pod("forks")
    node.add_pod("first")
    agent = start()
    process = psutil.Process(agent.process.pid)
    until(lambda: attributed(agent) == 2, "the pods")
    rss, fds, threads = process.memory_info().rss, open_fds(process.pid), process.num_threads()
    # Opened by the first tick that looks at the node alone, which may come as late as the storm.
    usage = "memory.current" if node.version == 2 else "memory.usage_in_bytes"
    fds[str(node.path / usage)] = 1
    command = [BUILD / "forker", str(FORKS), str(ALIVE), str(FORK_MS), container / "cgroup.procs"]
    forker = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    born = 0
    try:
        while forker.poll() is None or born < N:
            node.add_pod(f"passing-{born}")
            remove_pod(node, f"passing-{born}")
            born += 1
    finally:
        forker.kill()
        forker.wait()
    remove_pod(node, "first")
    node.add_pod("last")
    node.write_manifest(manifest)
    until(lambda: attributed(agent) == 2, "the last pod")
    until(lambda: without_pod(agent) == 0, "nothing is left of the others")
    # A request that has just been answered is a thread and a socket for a moment; it may have been one before, too.
    try:
        until(
            lambda: open_fds(process.pid).total() <= fds.total() and process.num_threads() <= threads,
            "no more than before",
        )
    except TimeoutError:
        raise AssertionError(f"new fds: {open_fds(process.pid) - fds}; threads: {process.num_threads()}") from None
    assert process.memory_info().rss - rss < MAX_GROWTH_BYTES
    assert agent.metric("koordebpf_failed_ticks_total") == 0
    assert agent.stop() == 0


def _with_shorter_names(text: str) -> str:
    return text.replace("KOORD_NAME_LEN 136", "KOORD_NAME_LEN 128")


def _with_tid_first(text: str) -> str:
    return text.replace("\t__u32 tgid;\n\t__u32 tid;\n", "\t__u32 tid;\n\t__u32 tgid;\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("record", "make_older"), [("koord_cgroup", _with_shorter_names), ("koord_reclaim", _with_tid_first)]
)
def test_objects_with_records_of_an_older_layout_are_refused(
    node: NodeCgroup,
    hierarchy: MemoryHierarchy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    record: str,
    make_older: Callable[[str], str],
) -> None:
    use_changed_programs(tmp_path, monkeypatch, make_older)
    before = held_by(os.getpid())
    with pytest.raises(SupportError, match=f"{record}.*make bpf"):
        NodeWatch(open_scope(hierarchy, node.path), None, 0)
    assert held_by(os.getpid()) == before
