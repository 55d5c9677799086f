"""The dead man's switch on this kernel: when it kills, whom, and that it does not without its agent."""

from __future__ import annotations

import mmap
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from koordebpf.kernel.bpf.deadman import DeadMan, DeadManOrder, Mode, support_of_dead_man
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy, cgroup_id
from koordebpf.kernel.proc.psi import PressureFile
from koordebpf.units import NS_PER_MS, NS_PER_S
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.host.rigs.thrashing_node import FILE_MIB, HELD_MIB, NODE_MIB, THRESHOLD_PERCENT, WIDE_MIB, ThrashingNode
from tests.host.stall_windows import StallWindows
from tests.support.bpf_ids import OtherMap, held_by, wait_for_none
from tests.support.nodes import MIB
from tests.support.patience import patience

pytestmark = pytest.mark.slow  # the kernel adds up a cgroup each two seconds, and two sums have to agree
AFTER_NS = 300 * NS_PER_MS
STALL_NS = 5 * NS_PER_MS
_FIRED, _FIRED_AT = struct.Struct("<Q"), 72  # in koord_deadman_report, bpf/include/koord_deadman.h

# A process whose first thread has ended: its pid is a zombie, and the process lives on.
_LEADERLESS = """
import ctypes, sys, threading, time
with open(sys.argv[1], "w") as file:
    file.write("0")
print("ready", flush=True)
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@pytest.fixture(scope="module")
def support() -> None:
    found = support_of_dead_man()
    if not found.works:
        pytest.skip(f"{OTHER_MACHINE}{found.reason}")


@pytest.fixture
def thrashing(hierarchy: MemoryHierarchy, support: None) -> Iterator[ThrashingNode]:
    with ThrashingNode(hierarchy) as node:
        yield node


@pytest.fixture
def dead_man(support: None) -> Iterator[DeadMan]:
    with DeadMan() as programs:
        yield programs


def order(node: ThrashingNode, mode: Mode = "kill", *, percent: int = THRESHOLD_PERCENT, until_s: float = 60):
    return DeadManOrder(
        after_ns=AFTER_NS,
        stall_ns=STALL_NS,
        victim_id=node.victim_id,
        until_ns=time.monotonic_ns() + round(until_s * NS_PER_S),
        node_cgroup_id=cgroup_id(node.node.path),
        above_pages=NODE_MIB * MIB * percent // 100 // mmap.PAGESIZE,
        mode=mode,
    )


def fires(programs: DeadMan, number: int = 1) -> None:
    until(lambda: programs.report().fired >= number, lambda: f"a shot, but: {programs.report()}", 20)


def test_who_was_chosen_is_killed_with_all_its_processes_and_no_one_else(thrashing, dead_man):
    thrashing.starts_walking()
    leaderless = subprocess.Popen(
        [sys.executable, "-c", _LEADERLESS, thrashing.be / "cgroup.procs"], stdout=subprocess.PIPE
    )
    assert leaderless.stdout is not None and leaderless.stdout.readline() == b"ready\n"
    dead_man.order(time.monotonic_ns(), order(thrashing))
    thrashing.grows(processes=3)
    thrashing.dies()
    assert leaderless.wait(patience(5)) == -signal.SIGKILL
    leaderless.stdout.close()
    report = dead_man.report()
    assert (report.fired, report.mode, report.victim_id) == (1, "kill", thrashing.victim_id)
    assert report.seen == 5 and report.signalled >= 5 and report.stall_ns >= STALL_NS
    assert report.fired_ns - report.heartbeat_ns >= AFTER_NS
    assert report.pages * mmap.PAGESIZE >= NODE_MIB * MIB * THRESHOLD_PERCENT // 100
    assert thrashing.has_survived


def test_counting_signals_no_process(thrashing, dead_man):
    thrashing.starts_walking()
    thrashing.grows()
    dead_man.order(time.monotonic_ns(), order(thrashing, "count"))
    fires(dead_man)
    time.sleep(patience(1))
    report = dead_man.report()
    assert (report.fired, report.mode, report.seen, report.signalled) == (1, "count", 2, 0)
    assert all(each.process.poll() is None for each in thrashing.holders) and thrashing.has_survived


def test_it_fires_once_until_the_agent_is_back(thrashing, dead_man):
    thrashing.starts_walking()
    thrashing.grows()
    wanted = order(thrashing, "count")
    dead_man.order(time.monotonic_ns(), wanted)
    fires(dead_man)
    time.sleep(patience(4 * AFTER_NS / NS_PER_S))
    assert dead_man.report().fired == 1
    dead_man.order(time.monotonic_ns(), wanted)
    fires(dead_man, 2)


@pytest.mark.parametrize("why", ["the heartbeat is fresh", "nothing is chosen", "the choice is too old", "it is off"])
def test_it_does_not_fire_while(thrashing, dead_man, why):
    thrashing.starts_walking()
    thrashing.grows()
    wanted = {
        "the heartbeat is fresh": order(thrashing),
        "nothing is chosen": DeadManOrder(
            AFTER_NS, STALL_NS, mode="kill", node_cgroup_id=cgroup_id(thrashing.node.path)
        ),
        "the choice is too old": order(thrashing, until_s=AFTER_NS / NS_PER_S / 2),
        "it is off": order(thrashing, "off"),
    }[why]
    dead_man.order(time.monotonic_ns(), wanted)
    end = time.monotonic() + patience(4)
    while time.monotonic() < end:
        if why == "the heartbeat is fresh":
            dead_man.beat(time.monotonic_ns())
        time.sleep(AFTER_NS / NS_PER_S / 6)
    assert dead_man.report().fired == 0 and all(each.process.poll() is None for each in thrashing.holders)
    # The node was as short as where it fires.
    dead_man.order(time.monotonic_ns(), order(thrashing, "count"))
    fires(dead_man)


def test_a_node_below_its_threshold_is_spared_while_page_cache_is_reclaimed(thrashing, dead_man):
    thrashing.starts_walking()
    thrashing.grows()
    dead_man.order(time.monotonic_ns(), order(thrashing, percent=95))
    until(lambda: dead_man.report().spared > 0, lambda: f"a node that is spared, but: {dead_man.report()}", 20)
    assert dead_man.report().fired == 0 and all(each.process.poll() is None for each in thrashing.holders)


def test_who_has_left_the_cgroup_is_not_signalled(thrashing, dead_man):
    thrashing.starts_walking()
    dead_man.order(time.monotonic_ns(), order(thrashing))
    left = thrashing.holders[0].process
    (thrashing.ls / "cgroup.procs").write_text(str(left.pid))
    thrashing.grows()
    until(lambda: thrashing.holders[1].process.poll() is not None, "the victim's end", 20)
    assert left.poll() is None and dead_man.report().seen == 1


@pytest.fixture
def counts_psi(dead_man: DeadMan) -> None:
    if dead_man.source != "psi":
        pytest.skip(f"{OTHER_MACHINE}it {dead_man.counts}")


def loses_page_cache(thrashing: ThrashingNode) -> None:
    """Short of memory, and one pod reads again and again what others take away; the node's limit is not met."""
    thrashing.walks(24)
    thrashing.grows()
    until(lambda: thrashing.node.usage_bytes() > HELD_MIB * MIB, "memory that is held")
    thrashing.loses_page_cache()


def test_tasks_that_wait_for_page_cache_and_reclaim_none_are_counted(thrashing, dead_man, counts_psi):
    loses_page_cache(thrashing)
    dead_man.order(time.monotonic_ns(), order(thrashing))
    thrashing.dies()
    report = dead_man.report()
    assert report.fired == 1 and report.late_stalls and report.stall_ns >= STALL_NS
    assert thrashing.times_full() == 0 and thrashing.has_survived


def test_without_psi_only_who_reclaims_is_counted(thrashing, support):
    with DeadMan("reclaim") as programs:
        loses_page_cache(thrashing)
        programs.order(time.monotonic_ns(), order(thrashing))
        time.sleep(patience(4))
        assert programs.report().late_stalls == 0 and thrashing.times_full() == 0
        thrashing.keeps_page_cache()  # else the node's limit is seldom met
        thrashing.starts_walking()
        thrashing.dies()


@pytest.mark.parametrize("source", [None, "reclaim"])
def test_a_pod_that_waits_at_its_own_limit_is_not_counted(hierarchy, support, source):
    with ThrashingNode(hierarchy, ls_limit_bytes=32 * MIB) as node, DeadMan(source) as programs:
        node.grows()
        until(lambda: node.node.usage_bytes() > HELD_MIB * MIB, "memory that is held")
        node.walks(64)
        node.floods(64)
        programs.order(time.monotonic_ns(), order(node))
        time.sleep(patience(4))
        report = programs.report()
        assert node.times_full(node.ls.parent) > 100 and node.times_full() == 0
        assert report.fired == 0 and report.late_stalls == 0


def test_no_stall_is_counted_twice(thrashing, counts_psi):
    pressure = PressureFile()
    with pressure, StallWindows(cgroup_id(thrashing.node.path)) as windows:
        thrashing.grows()
        thrashing.walks(2 * FILE_MIB)  # of one process: its stalls are not side by side
        until(lambda: thrashing.times_full() > 0, "a node that thrashes")
        before_us = pressure.read().some.total_us
        time.sleep(0.5)  # of a stall as much counts in a window as has passed before it
        counted_ms = sum(windows.during(patience(4)))
        waited_ms = (pressure.read().some.total_us - before_us) / 1000
    assert 0 < counted_ms <= waited_ms + STALL_NS / NS_PER_MS


# As on a node whose kubelet enforces node allocatable: the node's own limit is never met.
def limited_order(node: ThrashingNode, *, of_node: int = THRESHOLD_PERCENT, **given: Any) -> DeadManOrder:
    besteffort, kubepods = node.be.parents[1:3]
    given.setdefault("above_ids", (cgroup_id(besteffort), cgroup_id(kubepods)))
    given.setdefault("percent", THRESHOLD_PERCENT)
    return replace(order(node), above_pages=WIDE_MIB * MIB * of_node // 100 // mmap.PAGESIZE, **given)


@pytest.mark.parametrize("source", [None, "reclaim"])
@pytest.mark.parametrize("level", ["kubepods", "besteffort"])
def test_pods_that_wait_at_a_limit_above_the_victim_are_counted(thrashing, support, source, level):
    if level == "kubepods":
        limited, container = thrashing.moves_limit("kubepods"), thrashing.ls
    else:
        limited = thrashing.moves_limit("kubepods", "besteffort", mib=220)
        (container,) = thrashing.node.add_pod("walks")
    for _ in range(3):
        thrashing.walks(FILE_MIB // 2, container)
    with DeadMan(source) as programs:
        programs.order(time.monotonic_ns(), limited_order(thrashing))
        thrashing.grows()
        thrashing.dies()
        report = programs.report()
    assert report.fired == 1 and report.at_limit and report.stall_ns >= STALL_NS
    assert thrashing.times_full(limited) > 0 and thrashing.times_full() == 0 and thrashing.has_survived


@pytest.mark.parametrize("enough", ["the node", "kubepods"])
def test_pods_that_wait_at_kubepods_are_spared_while_it_or_the_node_has_memory(thrashing, dead_man, enough):
    limited = thrashing.moves_limit("kubepods")
    thrashing.starts_walking()
    thrashing.grows()
    wanted = limited_order(thrashing, of_node=95) if enough == "the node" else limited_order(thrashing, percent=95)
    dead_man.order(time.monotonic_ns(), wanted)
    until(lambda: dead_man.report().spared > 0, lambda: f"a node that is spared, but: {dead_man.report()}", 20)
    assert dead_man.report().fired == 0 and all(each.process.poll() is None for each in thrashing.holders)
    assert thrashing.times_full(limited) > 0 and thrashing.times_full() == 0


@pytest.mark.parametrize("why", ["the victim lies elsewhere", "nothing is known above the victim"])
def test_a_limit_of_many_pods_is_not_counted_where(thrashing, dead_man, why):
    elsewhere = why == "the victim lies elsewhere"
    limited = thrashing.moves_limit("kubepods", "burstable", mib=32) if elsewhere else thrashing.moves_limit("kubepods")
    thrashing.grows()
    until(lambda: thrashing.node.usage_bytes() > HELD_MIB * MIB, "memory that is held")
    thrashing.walks(FILE_MIB)
    given = {} if elsewhere else {"above_ids": ()}
    dead_man.order(time.monotonic_ns(), limited_order(thrashing, **given))
    time.sleep(patience(4))
    report = dead_man.report()
    assert thrashing.times_full(limited) > 100 and thrashing.times_full() == 0
    assert report.fired == 0 and report.late_stalls == 0


class StoppedAgent:
    """An agent with the switch, on a node that is about to thrash."""

    def __init__(self, thrashing: ThrashingNode, folder: Path, action: str, *more: str) -> None:
        self._thrashing = thrashing
        config = folder / "config.yaml"
        config.write_text(
            f"apiVersion: koordebpf.io/v1alpha1\nkind: AgentConfiguration\ndeadMan: {{action: {action}, stall: 5ms}}\n"
        )
        manifest = thrashing.write_manifest(folder)
        arguments = ["--config", config, "--pods", manifest, "--node-cgroup", thrashing.node.path]
        self.agent = LiveAgent(folder, *arguments, "--executor", "cgroup", *more)

    def has_its_victim_killed(self) -> None:
        self.is_armed()
        self._thrashing.starts_walking()
        self.agent.process.send_signal(signal.SIGSTOP)
        self._thrashing.grows()
        self._thrashing.dies()

    def is_armed(self) -> None:
        until(lambda: self.agent.metric("koordebpf_dead_man_armed") == 1, lambda: f"armed, but: {self.agent.log}")

    def fired(self, mode: str) -> float:
        return self.agent.metric(f'koordebpf_dead_man_fired_total{{mode="{mode}"}}')


def test_an_agent_that_is_stopped_has_its_first_victim_killed_and_says_so_afterwards(thrashing, tmp_path):
    stopped = StoppedAgent(thrashing, tmp_path, "kill", "--enforce")
    with stopped.agent as agent:
        stopped.has_its_victim_killed()
        assert thrashing.has_survived
        agent.process.send_signal(signal.SIGCONT)
        line = agent.has_plan()
        (outcome,) = line["outcomes"]
        assert (outcome["name"], outcome["executor"], outcome["result"]) == ("be", "deadman", "done")
        assert line["sentence"].startswith("the dead man's switch killed default/be: no heartbeat of the agent for ")
        until(lambda: stopped.fired("kill") == 1, "the metric")
        assert agent.stop() == 0


def test_an_agent_that_is_stopped_has_its_victim_killed_where_pods_wait_at_kubepods(thrashing, tmp_path):
    thrashing.moves_limit("kubepods")
    stopped = StoppedAgent(thrashing, tmp_path, "kill", "--enforce")
    with stopped.agent as agent:
        stopped.has_its_victim_killed()
        assert thrashing.times_full() == 0 and thrashing.has_survived
        agent.process.send_signal(signal.SIGCONT)
        line = agent.has_plan()
        assert line["outcomes"][0]["name"] == "be"
        assert line["sentence"].endswith(" for memory at the limit that pods have together")
        assert agent.stop() == 0


@pytest.mark.parametrize("enforce", [True, False], ids=["count", "kill without --enforce"])
def test_an_agent_that_only_counts_kills_no_one(thrashing, tmp_path, enforce):
    given = ("count", "--enforce") if enforce else ("kill",)
    stopped = StoppedAgent(thrashing, tmp_path, *given)
    with stopped.agent as agent:
        stopped.is_armed()
        thrashing.starts_walking()
        agent.process.send_signal(signal.SIGSTOP)
        thrashing.grows()
        with closing(OtherMap(agent.process.pid, "deadman_report")) as report:
            until(lambda: _FIRED.unpack_from(report.first(), _FIRED_AT)[0] == 1, "a shot", 20)
        time.sleep(patience(1))
        assert all(each.process.poll() is None for each in thrashing.holders)
        agent.process.send_signal(signal.SIGCONT)
        agent.said("the dead man's switch would have killed default/be")
        until(lambda: stopped.fired("count") == 1, "the metric")
        assert agent.stop() == 0


@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM])
def test_an_agent_that_has_ended_leaves_nothing_armed(thrashing, tmp_path, by):
    stopped = StoppedAgent(thrashing, tmp_path, "kill", "--enforce")
    with stopped.agent as agent:
        stopped.is_armed()
        thrashing.starts_walking()
        held = held_by(agent.process.pid)
        assert held.link and held.map
        agent.stop(by)
        assert not wait_for_none(held.alive, patience(10))
        thrashing.grows()
        time.sleep(patience(4))
        assert all(each.process.poll() is None for each in thrashing.holders) and thrashing.has_survived
