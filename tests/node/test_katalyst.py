"""Katalyst's eviction manager on a node: a plugin outside the agent asks, and the agent evicts by the API."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from koordebpf.slo.katalyst import TAINT_PREFIX
from koordebpf.strategies.katalyst.settings import KatalystSettings
from koordebpf.units import NS_PER_S
from tests.cluster.api import Object
from tests.cluster.objects import BASE
from tests.cluster.objects import pod as pod_object
from tests.node.agent import GuestAgent, bring_source
from tests.node.node import GuestNode
from tests.node.stories import OTHERS, expect_others_alive

RIGHTS = BASE.parent / "components/katalyst/rbac.yaml"
PLUGIN = Path(__file__).with_name("eviction_plugin.py")
CONFIG = "/etc/koordebpf/katalyst.json"
ANSWERS = "/run/outside.json"
CALLS = "/run/outside.calls"
UNIT = "eviction-plugin"
NOTICES, SOCKETS = KatalystSettings().notices, KatalystSettings().sockets
HEAT = f"{TAINT_PREFIX}Heat"
WARM = (*OTHERS, "hog")
SYNC_S, TRANSITION_S, GRACE_S, BURST = 2, 10, 12, 3
LONG_S = 60  # from round to round of an agent that is killed between two of them
NOT_MET: Object = {"met_type": 0}
SOFT: Object = {"met_type": 1, "eviction_scope": "heat", "threshold_value": 70, "observed_value": 81.5}
HARD: Object = {**SOFT, "met_type": 2}
CONDITION: Object = {"condition_name": "Heat", "effects": ["NoSchedule"], "met_condition": True}
QOS = "katalyst.kubewharf.io/qos_level"
NOTIFY = "katalyst.kubewharf.io/pod_soft_evict_notify"
# A pod that waits for its notice and says what stands in it.
READER = (
    "while ! [ -s /notice/soft_eviction_notify ]; do sleep 1; done;"
    " echo notice $(cat /notice/soft_eviction_notify); sleep 100000"
)


def settings(sync_s: int) -> Object:
    """Return the agent's, with so many seconds from round to round."""
    return {
        "apiVersion": "koordebpf.io/v1alpha1",
        "kind": "AgentConfiguration",
        "featureGates": {"BEMemoryEvict": False, "KatalystEviction": True},
        "guards": {"evictionsPerMinute": 100},
        "eviction": {"katalyst": {"sync": f"{sync_s}s", "transition": f"{TRANSITION_S}s", "burst": BURST}},
    }


class Outside:
    """The plugin on the node, and what it is to answer."""

    def __init__(self, node: GuestNode) -> None:
        self._node = node
        bring_source(node.guest)
        self.says()
        node.guest.write("/opt/koordebpf/eviction_plugin.py", PLUGIN.read_bytes())
        python = "python3 /opt/koordebpf/eviction_plugin.py"
        path = "--setenv=PYTHONPATH=/opt/koordebpf/source:/opt/koordebpf/site"
        node.guest.check(f"systemd-run --unit={UNIT} --collect {path} {python} {SOCKETS}/outside.sock {ANSWERS}")

    def says(self, met: Object = NOT_MET, top: Sequence[str] = (), evict: Sequence[Object] = ()) -> None:
        """Answer so from the next call on."""
        answers = {"met": met, "top": list(top), "evict": list(evict)}
        self._node.guest.write(f"{ANSWERS}.new", json.dumps(answers).encode())
        self._node.guest.check(f"mv {ANSWERS}.new {ANSWERS}")

    def rounds(self, agent: GuestAgent, number: int) -> None:
        """Wait until the agent has called it so many times more."""
        before = self._calls()
        agent.wait_until(lambda: self._calls() >= before + number, f"the plugin is not called in {number} rounds")

    def close(self) -> None:
        self._node.guest.check(f"systemctl stop {UNIT}; rm -f {ANSWERS} {CALLS}")

    def _calls(self) -> int:
        return int(self._node.guest.check(f"cat {CALLS} 2>/dev/null | wc -l"))


@pytest.fixture(scope="module")
def outside(shared_node: GuestNode) -> Iterator[Outside]:
    made = Outside(shared_node)
    yield made
    made.close()


@pytest.fixture(scope="module")
def enforcing(shared_node: GuestNode, outside: Outside) -> Iterator[GuestAgent]:
    """The agent of all tests but of those that kill it, with the rights of Katalyst's component."""
    shared_node.api.create(*(one for one in yaml.safe_load_all(RIGHTS.read_text()) if one))
    agent = start(shared_node)
    yield agent
    agent.stop()


def start(node: GuestNode, sync_s: int = SYNC_S) -> GuestAgent:
    node.guest.write(CONFIG, json.dumps(settings(sync_s)).encode())
    agent = node.agent("--enforce", "--config", CONFIG)
    agent.wait_for_log("plugin outside is registered")
    return agent


@pytest.fixture(autouse=True)
def quiet(outside: Outside, shared_node: GuestNode) -> Iterator[None]:
    """After each test the plugin asks for nothing, its pods are gone, and the others run as they did."""
    yield
    outside.says()
    for one in others(shared_node):
        shared_node.api.delete(one)
    shared_node.until(lambda: not others(shared_node), "the pods of the test are gone")
    expect_others_alive(shared_node)


def others(node: GuestNode) -> list[Object]:
    """Return the pods that are not those of the saved state."""
    names = {each["metadata"]["name"] for each in node.api.items("v1", "Pod", "default")} - {*WARM}
    return [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}} for name in names]


def reclaimed(name: str, node: GuestNode, level: str = "reclaimed_cores", **more: Any) -> Object:
    return pod_object(name, node.name, annotations={QOS: level, **more.pop("annotations", {})}, **more)


def evicted_by_round(agent: GuestAgent, since_s: float = 0) -> list[list[str]]:
    """Return the pods that it evicted itself, in their order, of each round from that uptime of the guest on."""
    own = [line for line in agent.evictions() if not line.get("interrupted")]
    return [[each["name"] for each in line["outcomes"]] for line in own if line["decided_ns"] >= since_s * NS_PER_S]


def evicted(agent: GuestAgent, since_s: float = 0) -> list[str]:
    """Return the pods of all these rounds."""
    return [name for names in evicted_by_round(agent, since_s) for name in names]


def taints(node: GuestNode) -> set[tuple[str, str]]:
    found = node.node()["spec"].get("taints", ())
    return {(each["key"], each["effect"]) for each in found if each["key"].startswith(TAINT_PREFIX)}


def said_by(node: GuestNode, name: str) -> str:
    """Return what a pod has printed."""
    return node.guest.check(f"cat /var/log/pods/default_{name}_*/load/*.log 2>/dev/null || true")


def reader(name: str, node: GuestNode) -> Object:
    """Return a pod that wants notices, with the folder of the node in which it finds them."""
    made = reclaimed(name, node, annotations={NOTIFY: "true"})
    (container,) = made["spec"]["containers"]
    container["command"] = ["/bin/sh", "-c", READER]
    container["volumeMounts"] = [{"name": "notice", "mountPath": "/notice", "readOnly": True}]
    # It has to be there, and the agent makes it.
    path = f"{NOTICES}/{name}@@__@@default"
    made["spec"]["volumes"] = [{"name": "notice", "hostPath": {"path": path, "type": "Directory"}}]
    return made


def test_a_pod_reads_its_notice_of_a_soft_eviction_and_a_hard_threshold_evicts_it(
    shared_node: GuestNode, outside: Outside, enforcing: GuestAgent
) -> None:
    since_s = shared_node.guest.uptime_s()
    shared_node.add(reader("listens", shared_node), 120)
    shared_node.add(reclaimed("deaf", shared_node))
    # WHEN a soft threshold is met that both are chosen for
    outside.says(SOFT, ["listens", "deaf"])
    # THEN the one that does not listen is evicted, and the other one is notified
    enforcing.wait_until(lambda: evicted(enforcing, since_s) == ["deaf"], "the pod without notice is evicted")
    shared_node.until(lambda: "notice " in said_by(shared_node, "listens"), "the pod reads its notice")
    notice = re.search(r"notice (\S.*)", said_by(shared_node, "listens"))
    assert notice is not None
    outside.rounds(enforcing, 3)
    assert evicted(enforcing, since_s) == ["deaf"]
    # AND a hard one evicts that, too
    outside.says(HARD, ["listens"])
    enforcing.wait_until(lambda: evicted(enforcing, since_s) == ["deaf", "listens"], "a hard threshold evicts it")
    assert (
        "plugin outside met threshold in scope heat, target 70, observed 81.5" in enforcing.evictions()[-1]["sentence"]
    )
    shared_node.until(lambda: shared_node.pod("listens") is None, "the pod is gone")
    gone = f"test -e {NOTICES}/listens@@__@@default"
    shared_node.until(lambda: shared_node.guest.run(gone).code, "the folder of its notices is gone")


def test_a_threshold_has_to_be_met_for_its_grace_period_without_a_break(
    shared_node: GuestNode, outside: Outside, enforcing: GuestAgent
) -> None:
    since_s = shared_node.guest.uptime_s()
    shared_node.add(reclaimed("patient", shared_node))
    lasting = {**HARD, "grace_period_seconds": GRACE_S}
    outside.says(lasting, ["patient"])
    outside.rounds(enforcing, 2)
    outside.says()
    outside.rounds(enforcing, 2)
    started_s = time.monotonic()
    outside.says(lasting, ["patient"])
    enforcing.wait_until(lambda: evicted(enforcing, since_s) == ["patient"], "it is evicted")
    assert time.monotonic() - started_s >= GRACE_S


def test_of_ten_forced_pods_three_go_in_a_round_the_reclaimed_ones_first(
    shared_node: GuestNode, outside: Outside, enforcing: GuestAgent, figure: Callable[[str], None]
) -> None:
    since_s = shared_node.guest.uptime_s()
    levels = {f"burst-{number}": "reclaimed_cores" if number in (2, 5, 7) else "shared_cores" for number in range(10)}
    made = [reclaimed(name, shared_node, level, grace_s=1) for name, level in levels.items()]
    for each in made[:-1]:
        shared_node.api.create(each)
    shared_node.add(made[-1], 120)
    shared_node.until(lambda: all(is_there(shared_node, name) for name in levels), "all pods run", 120)
    outside.rounds(enforcing, 1)
    started_s = time.monotonic()
    outside.says(evict=[{"pod": name, "reason": "heat", "force_evict": True} for name in levels])
    enforcing.wait_until(lambda: len(evicted(enforcing, since_s)) == len(levels), "all of them are evicted")
    seconds = time.monotonic() - started_s
    went = evicted(enforcing, since_s)
    assert sorted(went) == sorted(levels)
    assert {levels[name] for name in went[:3]} == {"reclaimed_cores"}
    assert max(map(len, evicted_by_round(enforcing, since_s))) <= BURST
    # Four rounds, of which each begins after the last.
    assert seconds > 3 * SYNC_S * 0.9
    figure(f"{seconds:.0f} s for 10 pods, {SYNC_S} s from round to round")


def is_there(node: GuestNode, name: str) -> bool:
    found = node.pod(name)
    statuses = found["status"].get("containerStatuses", ()) if found else ()
    return bool(statuses) and all("running" in each["state"] for each in statuses)


def test_a_condition_taints_the_node_until_its_transition_period_is_over(
    shared_node: GuestNode, outside: Outside, enforcing: GuestAgent
) -> None:
    since_s = shared_node.guest.uptime_s()
    outside.says({**SOFT, "condition": CONDITION})
    shared_node.until(lambda: taints(shared_node) == {(HEAT, "NoSchedule")}, "the node is tainted")
    outside.says()
    outside.rounds(enforcing, 1)
    ended_s = time.monotonic()
    assert taints(shared_node) == {(HEAT, "NoSchedule")}
    shared_node.until(lambda: not taints(shared_node), "the taint is gone")
    assert time.monotonic() - ended_s > TRANSITION_S - 3 * SYNC_S
    assert evicted(enforcing, since_s) == []


def test_an_agent_that_is_killed_is_followed_by_one_that_ends_what_it_left(
    shared_node: GuestNode, outside: Outside, enforcing: GuestAgent
) -> None:
    # GIVEN a taint, a notice, and soft evictions that wait for their round
    enforcing.stop()
    first = start(shared_node, LONG_S)
    shared_node.add(reader("waits", shared_node), 120)
    for name in ("soft-a", "soft-b", "soft-c"):
        shared_node.add(reclaimed(name, shared_node))
    outside.says({**SOFT, "condition": CONDITION}, ["waits", "soft-a", "soft-b", "soft-c"])
    shared_node.until(lambda: taints(shared_node) == {(HEAT, "NoSchedule")}, "the node is tainted")
    first.wait_until(lambda: evicted(first) == ["soft-a"], "the first soft eviction")
    shared_node.until(lambda: "notice " in said_by(shared_node, "waits"), "the pod reads its notice")
    # WHEN the agent is killed, the condition ends meanwhile, and the pod with the notice is deleted
    shared_node.guest.check("systemctl kill --signal=KILL koordebpf")
    shared_node.until(lambda: not first.is_active(), "it is dead")
    assert taints(shared_node) == {(HEAT, "NoSchedule")}
    assert evicted(first) == ["soft-a"]
    outside.says(SOFT, ["soft-b", "soft-c"])
    shared_node.api.delete({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "waits", "namespace": "default"}})
    # THEN the next one removes taint and folder, and evicts the others, one in a round
    second = start(shared_node)
    second.wait_until(lambda: evicted(second) == ["soft-b", "soft-c"], "the other soft evictions")
    assert list(map(len, evicted_by_round(second))) == [1, 1]
    shared_node.until(lambda: not taints(shared_node), "the taint is gone")
    gone = f"test -e {NOTICES}/waits@@__@@default"
    shared_node.until(lambda: shared_node.guest.run(gone).code, "the folder of its notices is gone")
    assert "koordebpf.io/katalyst-taints" not in shared_node.node()["metadata"].get("annotations", {})
    shared_node.until(lambda: not others(shared_node), "they are gone")
    second.stop()
    assert set(evicted(second)).isdisjoint(OTHERS)
