"""The agent as a process: how it starts, what it survives, how it ends; and `trace`, which stands on the same parts."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from koordebpf.collect.node_watch import NodeWatch, SignalHealth
from koordebpf.collect.scope import open_scope
from koordebpf.kernel.backends.files import FilesSignals
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.host.live_agent import ROOT, LiveAgent
from tests.support.loads.churn import short_inotify_queue
from tests.support.loads.workloads import BUILD, Hog
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

N = 23
STARTUP_S = 30


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 256 * MIB) as node:
        yield node


@pytest.fixture
def manifest(node: NodeCgroup, tmp_path: Path) -> Path:
    node.add_pod("first")
    return node.write_manifest(tmp_path / "pods.json")


Start = Callable[..., LiveAgent]


@pytest.fixture
def start(node: NodeCgroup, manifest: Path, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts an agent on the node, by default with its manifest."""
    agents: list[LiveAgent] = []

    def start(*arguments: object, **more: Any) -> LiveAgent:
        agents.append(LiveAgent(tmp_path, "--pods", manifest, "--node-cgroup", node.path, *arguments, **more))
        return agents[-1]

    yield start
    for agent in agents:
        agent.__exit__(None, None, None)


def backend_of(agent: LiveAgent) -> str:
    return str(json.loads(agent.get("/readyz")[1])["signals"]["backend"])


@pytest.fixture
def single_stalls() -> None:
    if os.environ.get("KOORDEBPF_BACKEND") == "files":
        pytest.skip(f"{OTHER_MACHINE}its backend is files, which tell of no single stall")


def attributed(agent: LiveAgent) -> float:
    return agent.metric('koordebpf_pods{state="attributed"}')


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_nothing_stays_behind(start: Start, node: NodeCgroup, by: signal.Signals) -> None:
    before = sorted(node.path.rglob("*"))
    agent = start().becomes_ready()
    assert any("bpf-prog" in link for link in _links(agent.process.pid)) is (backend_of(agent) != "files")
    assert agent.stop(by) == 0
    assert agent.log.splitlines()[-1].endswith("stopped: everything is detached")
    assert "Traceback" not in agent.log
    assert sorted(node.path.rglob("*")) == before


def _links(pid: int) -> list[str]:
    links = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # one that was closed meanwhile
            links.append(str(link.readlink()))
    return links


def test_a_second_signal_changes_nothing(start: Start) -> None:
    agent = start().becomes_ready()
    agent.process.send_signal(signal.SIGTERM)
    agent.process.send_signal(signal.SIGTERM)
    agent.process.send_signal(signal.SIGINT)
    assert agent.process.wait(patience(10)) == 0
    assert "Traceback" not in agent.log


@pytest.mark.slow
def test_a_file_that_is_half_written_leaves_the_last_good_one_in_force(
    start: Start, node: NodeCgroup, manifest: Path
) -> None:
    agent = start().becomes_ready()
    whole = manifest.read_text()
    manifest.write_text(whole[: len(whole) // 2])
    line = agent.said("the last good content stays in force")
    assert f"{manifest}:" in line and "must be whole JSON" in line
    agent.refuses("the file source: ")
    assert attributed(agent) == 1
    node.write_manifest(manifest)
    agent.becomes_ready()


@pytest.mark.slow
def test_a_changed_list_of_pods_is_taken(start: Start, node: NodeCgroup, manifest: Path) -> None:
    agent = start().becomes_ready()
    until(lambda: attributed(agent) == 1, "the first pod")
    node.add_pod("second")
    until(lambda: agent.metric('koordebpf_pods{state="without_pod"}') == 1, "a new pod that no source knows")
    node.write_manifest(manifest)
    until(lambda: attributed(agent) == 2, "the second pod")
    gone = node.pods.pop(0)
    node.write_manifest(manifest)
    until(lambda: attributed(agent) == 1, f"{gone['metadata']['name']} is still there")
    until(lambda: agent.metric('koordebpf_pods{state="without_pod"}') == 1, "its cgroup has no pod")


def _refused(agent: LiveAgent, code: int, *words: str) -> None:
    assert agent.process.wait(patience(STARTUP_S)) == code, agent.log
    assert "Traceback" not in agent.log
    printed = [line for line in agent.log.splitlines() if not re.match(r"\S+ \S+ [IW] ", line)]
    assert all(word in printed[-1] for word in words), agent.log
    # One sentence; click adds its usage to its own.
    assert len([line for line in printed if not line.startswith(("Usage: ", "Try "))]) == (
        1 if printed[0] == printed[-1] else 2
    )


def test_a_missing_file_ends_the_start(start: Start, tmp_path: Path) -> None:
    _refused(start("--pods", tmp_path / "none.json"), 2, "'--pods'", "none.json", "does not exist")


def test_a_file_that_is_no_manifest_ends_the_start(start: Start, manifest: Path) -> None:
    manifest.write_text("{")
    _refused(start(), 2, str(manifest), "must be whole JSON")


def test_a_nodeslo_of_a_wrong_type_ends_the_start(start: Start, manifest: Path) -> None:
    listed = json.loads(manifest.read_text())
    listed["items"][-1]["spec"]["resourceUsedThresholdWithBE"]["enable"] = "yes"
    manifest.write_text(json.dumps(listed))
    _refused(start(), 2, "spec.resourceUsedThresholdWithBE.enable: 'yes'")


def test_a_node_cgroup_without_a_limit_ends_the_start(start: Start, memory_cgroup: Path) -> None:
    _refused(start("--node-cgroup", memory_cgroup), 2, "--node-cgroup", str(memory_cgroup), "must have a memory limit")


def test_a_node_cgroup_that_is_none_ends_the_start(start: Start) -> None:
    _refused(start("--node-cgroup", "/var/tmp"), 2, "--node-cgroup", "'/var/tmp'", "must name a cgroup below")


def test_an_audit_file_that_cannot_be_written_ends_the_start(start: Start, tmp_path: Path) -> None:
    _refused(start("--audit", tmp_path / "none" / "audit"), 2, "--audit", "No such file or directory")


def test_a_port_in_use_ends_the_start(start: Start) -> None:
    first = start().becomes_ready()
    _refused(start("--listen", f"127.0.0.1:{first.port}"), 2, "--listen", str(first.port), "in use")
    assert first.readiness() == (200, [])


def test_without_privileges_the_start_ends_with_what_to_do(node: NodeCgroup, tmp_path: Path) -> None:
    unprivileged = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    tried = subprocess.run([*unprivileged, sys.executable, "-c", f"open({str(ROOT / 'koordebpf/cli/__init__.py')!r})"],
                           check=False, capture_output=True)  # fmt: skip
    if tried.returncode:
        pytest.skip(f"{OTHER_MACHINE}uid 65534 cannot read this repository, or there is no setpriv")
    # uid 65534 may not read tmp_path.
    with LiveAgent(
        tmp_path, "--pods", "/dev/null", "--node-cgroup", node.path, "--backend", "co-re", before=unprivileged
    ) as agent:
        _refused(agent, 3, "BPF", "EPERM", "Run as root or give CAP_BPF")


@pytest.mark.slow
def test_a_node_cgroup_that_is_removed_ends_the_agent(start: Start, node: NodeCgroup) -> None:
    agent = start().becomes_ready()
    node.close()
    agent.refuses("the last tick failed: ")
    assert agent.process.wait(patience(60)) == 3
    assert "Traceback" not in agent.log
    last = agent.log.splitlines()[-1]
    assert "10 ticks in a row failed" in last and f"{node.path}: the cgroup is gone" in last


def test_a_node_cgroup_that_loses_its_limit_ends_the_agent(start: Start, node: NodeCgroup) -> None:
    agent = start().becomes_ready()
    limit = node.path / ("memory.max" if node.version == 2 else "memory.limit_in_bytes")
    limit.write_text("max" if node.version == 2 else "-1")
    assert agent.process.wait(patience(30)) == 2
    assert "lost its memory limit" in agent.log.splitlines()[-1]


@pytest.mark.slow
def test_lost_records_are_made_good_by_a_rescan(
    start: Start, node: NodeCgroup, manifest: Path, memory_cgroup: Path
) -> None:
    with short_inotify_queue(1000):
        agent = start().becomes_ready()
    is_files = backend_of(agent) == "files"
    agent.process.send_signal(signal.SIGSTOP)
    # Two records each: the ring holds about 1,300; inotify reports only what lies below the node.
    for number in range(1000):
        path = (node.path if is_files else memory_cgroup) / str(number)
        path.mkdir()
        path.rmdir()
    node.add_pod("unseen")
    node.write_manifest(manifest)
    agent.process.send_signal(signal.SIGCONT)
    agent.said("kernel records were lost; reading the cgroup tree again")
    until(lambda: attributed(agent) == 2, "the pod whose mkdir was lost")
    assert agent.metric("koordebpf_lost_records_total") > 0
    if not is_files:  # an overflow is one loss: the tree was compared at once
        agent.refuses("kernel records lost within 10 s")
    agent.becomes_ready()  # ten seconds later


def test_cgroups_whose_mkdir_no_program_reports_are_found_within_a_second(
    node: NodeCgroup, manifest: Path, hierarchy: MemoryHierarchy
) -> None:
    scope = open_scope(hierarchy, node.path)
    with NodeWatch(scope, None, 0, backend="files") as watch:
        blind = FilesSignals(watch.request, max_watches=0)
        watch.signals.close()
        watch.signals, watch.health = blind, SignalHealth(blind)
        node.add_pod("unheard")
        uid = node.pods[-1]["metadata"]["uid"]

        def is_found() -> bool:
            watch.drain()
            return any(owner.pod_uid == uid for owner in watch.index.cgroups_without_pod())

        until(is_found, "the rescan")
        assert watch.rescans == 0  # of lost records


@pytest.mark.slow
def test_a_pod_that_someone_else_deleted_is_no_victim_of_ours(start: Start, node: NodeCgroup, manifest: Path) -> None:
    (container,) = node.add_pod("leaving")
    node.pods[-1]["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    node.write_manifest(manifest)
    agent = start().becomes_ready()
    hog = Hog(container, 50, hold_s=60)
    hog.wait_for("done")
    until(lambda: agent.metric("koordebpf_pending_release_bytes") > 0, "its memory is on its way")
    hog.stop()
    until(lambda: agent.metric("koordebpf_pending_release_bytes") == 0, "its memory is back")
    assert agent.metric("koordebpf_released_bytes_total") == 0
    assert agent.stop() == 0


@pytest.mark.slow
def test_an_unexpected_error_ends_one_tick_only(start: Start, node: NodeCgroup, manifest: Path) -> None:
    # The shmem of a pod with a volume in memory is read from a file that is opened for it.
    node.pods[0]["spec"]["volumes"] = [{"name": "v", "emptyDir": {"medium": "Memory"}}]
    node.write_manifest(manifest)
    agent = start().becomes_ready()
    resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, (1, 4096))
    agent.said("the tick ended unexpectedly")
    resource.prlimit(agent.process.pid, resource.RLIMIT_NOFILE, (4096, 4096))
    until(lambda: agent.metric("koordebpf_failed_ticks_total"), "the metric")
    agent.becomes_ready()  # one more may have started to fail meanwhile
    failed, ticks = agent.metric("koordebpf_failed_ticks_total"), agent.metric("koordebpf_ticks_total")
    until(lambda: agent.metric("koordebpf_ticks_total") >= ticks + 2, "the next ticks")
    assert agent.metric("koordebpf_failed_ticks_total") == failed
    assert "Too many open files" in agent.log
    agent.becomes_ready()
    assert agent.stop() == 0


class Trace:
    """`koordebpf trace --json` on a node, ready once it has printed the creation of a probe cgroup."""

    def __init__(self, folder: Path, node: NodeCgroup, *arguments: object, wait: bool = True) -> None:
        self._out = folder / f"trace-{uuid.uuid4().hex}"
        command = [sys.executable, "-m", "koordebpf", "trace", "--json", "--node-cgroup", str(node.path)]
        with self._out.open("wb") as out:
            self.process = subprocess.Popen([*command, *map(str, arguments)], cwd=ROOT, stdout=out)
        if wait:
            self._wait(node)

    def _wait(self, node: NodeCgroup) -> None:
        mark = node.path / f"mark-{uuid.uuid4().hex[:8]}"

        def is_seen() -> bool:
            mark.mkdir()
            mark.rmdir()
            time.sleep(0.05)
            return self.process.poll() is not None or any(mark.name in str(row.get("name")) for row in self.rows())

        until(is_seen, "trace")

    def rows(self) -> list[dict[str, Any]]:
        # The last line may be on its way.
        return [json.loads(line) for line in self._out.read_bytes().split(b"\n")[:-1]]

    def kinds(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in self.rows() if row["kind"] == kind]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(patience(10))


Follow = Callable[..., Trace]


@pytest.fixture
def follow(tmp_path: Path, node: NodeCgroup) -> Iterator[Follow]:
    traces: list[Trace] = []

    def follow(*arguments: object, wait: bool = True) -> Trace:
        traces.append(Trace(tmp_path, node, *arguments, wait=wait))
        return traces[-1]

    yield follow
    for trace in traces:
        trace.close()


def thrash(container: Path, mib: int = 64, seconds: int = 2) -> None:
    """Walk a file that the container's limit does not let stay."""
    command = [BUILD / "thrash", "/var/tmp", str(mib), str(seconds), str(container / "cgroup.procs")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.slow
def test_a_pods_first_stall_has_its_name(single_stalls: None, follow: Follow, node: NodeCgroup, manifest: Path) -> None:
    trace = follow("--pods", manifest)
    uid = str(uuid.uuid4())
    # As in a cluster: the pod is known before kubelet makes its cgroup, and its container's id is not.
    pod = {
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "newborn", "namespace": "default", "uid": uid},
        "spec": {"containers": [{"name": "c"}]}, "status": {"phase": "Pending", "qosClass": "BestEffort"},
    }  # fmt: skip
    node.pods.append(pod)
    node.write_manifest(manifest)
    container = node.path / "kubepods" / "besteffort" / f"pod{uid}" / (uuid.uuid4().hex * 2)
    container.parent.mkdir()
    if node.version == 2:
        (container.parent / "cgroup.subtree_control").write_text("+memory")
    container.mkdir()
    limit = container / ("memory.max" if node.version == 2 else "memory.limit_in_bytes")
    # Half of what it reads: of less, what it writes at first may all be on its way to a slow disk, and it is killed.
    limit.write_text(str(32 * MIB))
    thrash(container, seconds=1)
    stalls = until(lambda: trace.kinds("reclaim"), "stalls")
    created = [row for row in trace.kinds("cgroup_mkdir") if row["name"] in (container.name, container.parent.name)]
    assert [row["owner"]["pod_name"] for row in created] == ["newborn", "newborn"]
    assert stalls[0]["owner"]["pod_name"] == "newborn"
    assert stalls[0]["owner"]["pod_uid"] == uid
    assert created[-1]["ts_ns"] < stalls[0]["ts_ns"]
    assert not stalls[0]["is_global"]


@pytest.mark.slow
def test_trace_shows_what_is_asked_for(single_stalls: None, follow: Follow, node: NodeCgroup, manifest: Path) -> None:
    (one,) = node.add_pod("one", limit_bytes=8 * MIB)
    (two,) = node.add_pod("two", limit_bytes=8 * MIB)
    node.write_manifest(manifest)
    everything = follow("--pods", manifest)
    by_pod = follow("--pods", manifest, "--pod", "default/one", wait=False)
    by_cgroup = follow("--cgroup", two, wait=False)
    by_kind = follow("--kind", "cgroup_rmdir", wait=False)

    def is_seen_by_all() -> bool:
        # Over and over: what a trace misses before it is up does not count.
        thrash(one, seconds=1)
        thrash(two, seconds=1)
        (node.path / "passing").mkdir()
        (node.path / "passing").rmdir()
        return all(trace.rows() for trace in (by_pod, by_cgroup, by_kind))

    until(is_seen_by_all, "records")
    stalls = everything.kinds("reclaim")
    assert {row["owner"]["pod_name"] for row in stalls} == {"one", "two"}
    assert {row["owner"]["pod_name"] for row in by_pod.rows()} == {"one"}
    assert {row["cgroup_id"] for row in by_cgroup.rows()} == {two.stat().st_ino}
    assert {row["kind"] for row in by_kind.rows()} == {"cgroup_rmdir"}

    durations = [row["delta_ns"] for row in stalls]
    line_ms = statistics.median(durations) / 1e6
    longer = follow("--kind", "reclaim", "--min-ms", line_ms, "--count", N, wait=False)
    until(lambda: thrash(one, seconds=1) or longer.process.poll() is not None, "so many long stalls")
    assert longer.process.wait(patience(10)) == 0
    assert len(longer.rows()) == N
    assert min(row["delta_ns"] for row in longer.rows()) >= int(line_ms * 1e6)
    assert min(durations) < int(line_ms * 1e6)  # there were shorter ones


def test_trace_ends_after_exactly_so_many(follow: Follow, node: NodeCgroup) -> None:
    trace = follow("--kind", "cgroup_mkdir", "--count", N, wait=False)
    for number in range(3000):
        if trace.process.poll() is not None:
            break
        (node.path / f"n{number}").mkdir()
        time.sleep(0.01)
        (node.path / f"n{number}").rmdir()
    assert trace.process.wait(patience(10)) == 0
    rows = trace.rows()
    assert len(rows) == N
    names = [int(row["name"][1:]) for row in rows if row["name"].startswith("n")]
    assert names == sorted(names)


def test_a_real_hog_in_dry_run_is_reported_and_left_alone(start: Start, node: NodeCgroup, manifest: Path) -> None:
    (container,) = node.add_pod("hog", priority=5000)
    node.write_manifest(manifest)
    agent = start().becomes_ready()
    hog = Hog(container, 200, rate_mib_s=400, hold_s=60)
    try:
        assert agent.has_plan()["outcomes"][0]["result"] == "dry_run"
        assert "(dry run)" in agent.said("evicting default/hog")
        assert hog.process.poll() is None
        assert agent.stop() == 0
    finally:
        hog.stop()
