"""What becomes of decisions and their records: disk full, file gone, agent killed, two agents.

Each test prints how much was tried, how much survived and how much was lost.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.report.pages.explain import decode_audit, explained
from koordebpf.state.outcome import Result
from koordebpf.store.audit import AuditLog
from koordebpf.store.audit_record import AuditRecord, OpenPlan
from koordebpf.store.wal import IN_FLIGHT_PATH, read_left
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import Exchange, until
from tests.host.live_agent import ROOT, LiveAgent
from tests.host.live_cluster import EVICTED, LiveCluster
from tests.host.test_agent_api import Story
from tests.support.loads.workloads import Hog
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience
from tests.support.values.builders import frame, plan_of, pod

N = 5
N_API = 3
LINES = 500
DISK_BYTES = 64 << 10

Start = Callable[..., LiveAgent]


def record(number: int) -> AuditRecord:
    plan = plan_of(frame([pod("hog", anon=300), pod("calm", anon=10)], used=900))
    return OpenPlan(plan, node="n1", dry_run=False, seen_ns=None, decided_ns=number, wall_s=0.0).record()


def numbers(*paths: Path) -> list[int]:
    """Return which records stand in the files; every line is a whole one."""
    found: list[int] = []
    for path in paths:
        records, problems = decode_audit(path.read_bytes(), path.name)
        assert problems == ()
        found += [each.decided_ns for each in records]
    return found


def tell(what: str, tried: int, survived: int) -> None:
    print(f"{what}: tried {tried}, survived {survived}, lost {tried - survived}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", path], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"{OTHER_MACHINE}no tmpfs can be mounted: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", path], check=True)


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 256 * MIB) as node:
        yield node


@pytest.fixture
def start(node: NodeCgroup, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts an agent on the node; of options that are given twice the last counts."""
    agents: list[LiveAgent] = []

    def start(*arguments: object) -> LiveAgent:
        agents.append(LiveAgent(tmp_path, *common(node, tmp_path), *arguments))
        return agents[-1]

    yield start
    for agent in agents:
        agent.__exit__(None, None, None)


def common(node: NodeCgroup, folder: Path) -> list[object]:
    manifest = node.write_manifest(folder / "pods.json")
    return ["--pods", manifest, "--node-cgroup", node.path, "--executor", "cgroup", "--run-dir", folder / "run"]


def test_a_full_disk_loses_no_line_that_fits_into_memory(small_disk: Path) -> None:
    path = small_disk / "audit.jsonl"
    log, tried = AuditLog(path), 0
    while log.write(record(tried)):
        tried += 1
    assert not any(log.write(record(tried + more)) for more in range(1, 20))
    tried += 20
    assert "No space left" in (log.last_error or "")
    before = numbers(path)
    assert before == list(range(len(before))) and log.waiting == tried - len(before)
    path.rename(path.with_suffix(".full"))
    os.truncate(path.with_suffix(".full"), 0)  # another process makes room
    assert log.catch_up()
    survived = before + numbers(path)
    tell("disk full for 20 lines", tried, len(survived))
    assert survived == list(range(tried))
    assert log.dropped == 0


def test_a_disk_that_stays_full_costs_the_oldest_lines_and_they_are_counted(small_disk: Path) -> None:
    path = small_disk / "audit.jsonl"
    (small_disk / "ballast").write_bytes(bytes(DISK_BYTES))
    log = AuditLog(path, waiting_lines=100)
    assert not any(log.write(record(number)) for number in range(LINES))
    assert path.read_bytes() == b""
    (small_disk / "ballast").unlink()
    os.truncate(path, 0)
    while log.waiting and log.catch_up() is False:
        path.unlink()  # as often as it takes: the disk is smaller than what waits
    tell("disk full for 500 lines, 100 kept in memory", LINES, LINES - log.dropped)
    assert log.dropped == LINES - 100


def test_a_file_that_others_rotate_or_remove_loses_nothing_of_ours(tmp_path: Path) -> None:
    path, kept = tmp_path / "audit.jsonl", tmp_path / "kept"
    kept.mkdir()
    log, moved, is_over = AuditLog(path), 0, threading.Event()

    def rotate() -> None:
        nonlocal moved
        while not is_over.is_set():
            if path.exists():
                path.rename(kept / f"{moved:05d}")
                moved += 1

    rotator = threading.Thread(target=rotate)
    rotator.start()
    for number in range(LINES):
        assert log.write(record(number))
    is_over.set()
    rotator.join()
    survived = numbers(*sorted(kept.iterdir()), *([path] if path.exists() else []))
    tell(f"moved away {moved} times", LINES, len(survived))
    assert survived == list(range(LINES))
    path.unlink(missing_ok=True)
    assert log.write(record(LINES)) and numbers(path) == [LINES]


@pytest.mark.slow
def test_an_eviction_does_not_wait_for_a_full_disk(node: NodeCgroup, start: Start, small_disk: Path) -> None:
    (container,) = node.add_pod("hog", priority=5000)
    audit = small_disk / "audit.jsonl"
    (small_disk / "ballast").write_bytes(bytes(DISK_BYTES - 4096))
    audit.write_bytes(b"{}\n" * 1365)  # the last page
    agent = start("--audit", audit, "--enforce").becomes_ready()
    hog = Hog(container, 200)
    hog.story()
    assert hog.process.returncode == -signal.SIGKILL
    agent.said("audit lines wait to be written: ")
    until(lambda: agent.metric("koordebpf_audit_waiting") == 1, "one line waits")
    audit.unlink()
    until(lambda: agent.metric("koordebpf_audit_waiting") == 0, "it is written")
    (line,) = decode_audit(audit.read_bytes(), "audit")[0]
    tell("evictions on a full disk", 1, len(line.outcomes))
    assert line.outcomes[0].name == "hog"
    assert agent.metric("koordebpf_audit_dropped_total") == 0
    assert agent.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_killed_agent_loses_no_record_and_its_successor_evicts_no_pod_twice(
    node: NodeCgroup, start: Start, tmp_path: Path, moment: str
) -> None:
    (eaten,) = node.add_pod("hog", priority=5000)
    (spared,) = node.add_pod("calm", priority=5500)
    calm = Hog(spared, 40, hold_s=600)
    calm.wait_for("done")
    records: list[AuditRecord] = []
    for number in range(N):
        audit = tmp_path / f"audit-{number}"
        command = [sys.executable, "-m", "tests.host.dying_agent", moment, *common(node, tmp_path), "--enforce"]
        command += ["--listen", "", "--audit", audit]
        dying = subprocess.Popen([*map(str, command)], cwd=ROOT, stderr=subprocess.DEVNULL)
        hog = Hog(eaten, 170, hold_s=600)
        assert dying.wait(patience(60)) == -signal.SIGKILL
        assert audit.read_bytes() == b""
        successor = start("--audit", audit, "--enforce").becomes_ready()
        hog.story()
        assert hog.process.returncode == -signal.SIGKILL
        lines = 2 if moment == "before" else 1
        until(lambda audit=audit, lines=lines: audit.read_bytes().count(b"\n") >= lines, "the audit lines")
        ticks = successor.metric("koordebpf_ticks_total")
        until(lambda s=successor, t=ticks: s.metric("koordebpf_ticks_total") >= t + 3, "further ticks")
        assert successor.stop() == 0
        records += decode_audit(audit.read_bytes(), "audit")[0]
        assert calm.process.poll() is None
    calm.stop()
    interrupted = [each for each in records if each.interrupted]
    evicted = [outcome.name for each in records for outcome in each.outcomes]
    tell(f"killed {moment} the act, records", N, len(interrupted))
    assert len(interrupted) == N
    assert all(each.outcomes == () and "spark" not in each.sentence for each in interrupted)
    assert "The agent ended before it knew" in explained(interrupted[0])
    # Before the act nothing was sent: the successor acts, once. After it, the hog is gone by itself.
    tell(f"killed {moment} the act, evictions twice", N, N - sum(name != "hog" for name in evicted))
    assert evicted == (["hog"] * N if moment == "before" else [])


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "after"])
def test_an_agent_that_is_killed_during_an_api_eviction_evicts_no_pod_twice(
    hierarchy: MemoryHierarchy, tmp_path: Path, moment: str
) -> None:
    asked: list[str] = []
    records: list[AuditRecord] = []
    for number in range(N_API):
        folder = tmp_path / str(number)
        folder.mkdir()
        with closing(Story(hierarchy, folder)) as story:
            cluster = story.cluster()
            first = story.agent(cluster.server.url).becomes_ready()

            def is_noted(folder: Path = folder) -> bool:
                (in_flight,) = folder.glob(f"run/*/{IN_FLIGHT_PATH.name}")
                return any(each.outcomes for each in read_left(in_flight.read_bytes()).records)

            def die(
                exchange: Exchange,
                cluster: LiveCluster = cluster,
                agent: LiveAgent = first,
                is_noted: Callable[[], bool] = is_noted,
            ) -> None:
                # On the wire and noted before the kill; what the server does of it is over before, or does not happen.
                until(is_noted, "the request stands in the file")
                agent.process.send_signal(signal.SIGKILL)
                agent.process.wait()
                if moment == "after":
                    pod = cluster.pod("hog")
                    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:30Z"
                    cluster.pods.put("MODIFIED", pod)
                    exchange.answer(201, EVICTED)
                exchange.cut()

            cluster.answers["hog"].append(die)
            hog, other = story.grow()
            until(lambda agent=first: agent.process.poll() is not None, "the agent's end")
            second = story.agent(cluster.server.url).becomes_ready()
            if moment == "after":  # its grace period: the successor has to wait for it
                ticks = second.metric("koordebpf_ticks_total")
                until(
                    lambda s=second, t=ticks: s.metric("koordebpf_ticks_total") >= t + 20, "ticks above the threshold"
                )
                cluster.kill("hog")
            hog.story()
            assert other.process.poll() is None
            assert second.stop() == 0
            asked += cluster.asked()
            records += decode_audit(second.audit.read_bytes(), "audit")[0]
    interrupted = [each for each in records if each.interrupted]
    tell(f"killed during an API eviction, {moment} the server acted, records", N_API, len(interrupted))
    # Before: the first agent's request came to nothing, and the successor's is the one that counts.
    assert asked == ["hog"] * (2 * N_API if moment == "before" else N_API)
    assert [outcome.result for each in interrupted for outcome in each.outcomes] == [Result.SENT] * N_API
    print(f"killed during an API eviction, {moment} the server acted: tried {N_API}, evicted twice 0, others evicted 0")


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
def test_the_minutes_budget_outlives_its_agent(node: NodeCgroup, start: Start, by: signal.Signals) -> None:
    paths = {name: node.add_pod(name, priority=5000)[0] for name in ("first", "second")}
    agent = start("--enforce", "--evictions-per-minute", 1).becomes_ready()
    first = Hog(paths["first"], 200)
    first.story()
    assert first.process.returncode == -signal.SIGKILL
    agent.has_plan()
    agent.stop(by)
    second = Hog(paths["second"], 200, hold_s=600)
    second.wait_for("done")
    successor = start("--enforce", "--evictions-per-minute", 1).becomes_ready()
    successor.said("1 evictions of the last minute count from the agent before")
    successor.said("1 evictions in the last minute already")
    ticks = successor.metric("koordebpf_ticks_total")
    until(lambda: successor.metric("koordebpf_ticks_total") >= ticks + 3, "further ticks")
    assert second.process.poll() is None
    second.stop()
    assert successor.stop() == 0
    print(f"a start after {by.name} with a budget that is spent: tried 1, held 1, evicted 0")


@pytest.mark.slow
def test_of_two_agents_that_act_on_a_node_the_second_refuses(node: NodeCgroup, start: Start, tmp_path: Path) -> None:
    first = start("--enforce").becomes_ready()
    for _ in range(N):
        second = start("--enforce")
        assert second.process.wait(patience(30)) == 2
        assert f"process {first.process.pid} of " in second.log
        assert second.log.rstrip().endswith("or have it stand by (--stand-by)")
    observer = start().becomes_ready()
    print(f"second agents beside one that acts: tried {N}, refused {N}")
    # However the first one ends, the next may act.
    assert first.stop(signal.SIGKILL) == -signal.SIGKILL
    third = start("--enforce").becomes_ready()
    assert third.stop() == 0
    assert observer.stop() == 0
    assert list((tmp_path / "run").iterdir()) == []
