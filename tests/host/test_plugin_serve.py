"""`koordebpf plugin serve` as a process on real cgroups, driven as an agent drives a plugin."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import psutil
import pytest

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.slo.katalyst_access import AccessSettings
from koordebpf.strategies.katalyst.registry import PluginAccess
from koordebpf.strategies.katalyst.values import Condition, TopAsk, TopPods
from tests.contract.apiserver import until
from tests.support.loads.workloads import Holder
from tests.support.nodes import MIB, NodeCgroup
from tests.support.outside_plugins import OutsidePlugins
from tests.support.patience import patience
from tests.support.plugin_pods import plugin_pod

ROOT = Path(__file__).parents[2]
NAME = "koordebpf-memory-pressure-plugin"
NODE_MIB, FREE_MIB = 400, 100
CONFIG = f"""
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
eviction:
  katalyst:
    inner:
      systemMemory:
        freeMinimum: {FREE_MIB}Mi
"""


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, NODE_MIB * MIB) as node:
        yield node


class Served:
    """The command, with its log."""

    def __init__(self, node: NodeCgroup, folder: Path, *more: object, config: str = CONFIG) -> None:
        path = folder / "config.yaml"
        path.write_text(config)
        self.sockets = Path(tempfile.gettempdir()) / f"plugins-{folder.name[-20:]}"  # a socket's path is short
        self._log = folder / f"log-{time.monotonic_ns()}"
        command = [
            sys.executable,
            "-m",
            "koordebpf",
            "plugin",
            "serve",
            "--directory",
            self.sockets,
            "--config",
            path,
        ]
        command += ["--node-cgroup", node.path, *more]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=log, stderr=log)

    @property
    def socket(self) -> Path:
        return self.sockets / f"{NAME}.sock"

    @property
    def log(self) -> str:
        return self._log.read_text()

    def said(self, text: str) -> None:
        until(lambda: text in self.log or self.process.poll() is not None, lambda: f"{text!r}, but:\n{self.log}")
        assert text in self.log

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.sockets, ignore_errors=True)


@contextlib.contextmanager
def outside(served: Served, access: PluginAccess | None = None) -> Iterator[OutsidePlugins]:
    served.said("is served by")
    made = OutsidePlugins(served.sockets, access=access)
    try:
        yield made
    finally:
        made.close()


def pods_of(node: NodeCgroup, levels: dict[str, str]) -> dict[str, bytes]:
    """The node's pods as an agent has them, by name."""
    uids = {each["metadata"]["name"]: each["metadata"]["uid"] for each in node.pods}
    return {name: plugin_pod(uids[name], level) for name, level in levels.items()}


@pytest.mark.slow
def test_below_the_watermark_reclaimed_pods_are_chosen_the_largest_first(node: NodeCgroup, tmp_path: Path) -> None:
    (small,) = node.add_pod("small")
    (large,) = node.add_pod("large")
    (online,) = node.add_pod("online", be=False)
    by_name = pods_of(node, {"small": "reclaimed_cores", "large": "reclaimed_cores", "online": "shared_cores"})
    uids = {each["metadata"]["name"]: each["metadata"]["uid"] for each in node.pods}
    pods = {uids[name]: data for name, data in by_name.items()}
    holders = [Holder(online, "anon", 160)]
    try:
        with Served(node, tmp_path) as served, outside(served) as agent:
            agent.has(NAME)
            served.said(f"the agent has registered {NAME}")
            answer = agent.thresholds(pods)[NAME]
            assert (answer.threshold, answer.problem) == (None, None)
            # WHEN the reclaimed pods take what has to stay free
            holders += [Holder(small, "anon", 20), Holder(large, "anon", 150)]
            time.sleep(0.2)
            threshold = agent.thresholds(pods)[NAME].threshold
            assert threshold is not None
            assert (threshold.met, threshold.scope, threshold.value) == ("hard", "SystemMemory", FREE_MIB * MIB)
            assert threshold.observed < threshold.value
            assert threshold.condition == Condition("MemoryPressure", "node", ("NoSchedule",))
            # THEN the one whose eviction frees most is chosen, and its bytes are those that were sent
            top = agent.top(TopAsk(NAME, "SystemMemory", 1, tuple(pods)), pods)
            assert (top.top, top.problem) == (TopPods((uids["large"],), 1), None)
            # AND while that one leaves, no other is
            assert agent.top(TopAsk(NAME, "SystemMemory", 1, tuple(pods)), pods).top == TopPods(())
            served.said("scope SystemMemory: chosen of 3 pods: team/")
    finally:
        for each in holders:
            each.stop()


@pytest.mark.slow
def test_only_pods_that_are_asked_about_are_chosen(node: NodeCgroup, tmp_path: Path) -> None:
    (large,) = node.add_pod("large")
    node.add_pod("small")
    by_name = pods_of(node, {"large": "reclaimed_cores", "small": "reclaimed_cores"})
    uids = {each["metadata"]["name"]: each["metadata"]["uid"] for each in node.pods}
    pods = {uids[name]: data for name, data in by_name.items()}
    holder = Holder(large, "anon", NODE_MIB - FREE_MIB // 2)
    try:
        with Served(node, tmp_path) as served, outside(served) as agent:
            agent.has(NAME)
            assert agent.thresholds(pods)[NAME].threshold is not None
            top = agent.top(TopAsk(NAME, "SystemMemory", 0, (uids["small"],)), pods)
            assert top.top == TopPods((uids["small"],), 1)
    finally:
        holder.stop()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_and_the_socket_is_gone(node: NodeCgroup, tmp_path: Path, number: int) -> None:
    with Served(node, tmp_path) as served:
        served.said(f"plugin {NAME} is served by {served.socket}")
        served.process.send_signal(number)
        assert served.process.wait(patience(20)) == 0
        assert "stopped: " in served.log
        assert list(served.sockets.iterdir()) == []


@pytest.mark.slow
def test_a_second_one_is_refused_and_the_place_of_a_killed_one_is_taken(node: NodeCgroup, tmp_path: Path) -> None:
    with Served(node, tmp_path) as first:
        first.said("is served by")
        second = Served(node, tmp_path)
        assert second.process.wait(patience(20)) == 2
        assert "another process serves it: end that one, or choose another name" in second.log
        assert first.process.poll() is None
        assert first.socket.exists()
        first.process.kill()
        first.process.wait()
        assert first.socket.exists()
        with Served(node, tmp_path) as third, outside(third) as agent:
            agent.has(NAME)
            assert agent.thresholds({})[NAME].problem is None


@pytest.mark.slow
def test_an_agent_that_authenticates_plugins_takes_its_token(node: NodeCgroup, tmp_path: Path) -> None:
    token, rules = tmp_path / "token", tmp_path / "auth.yaml"
    token.write_text(f"Basic {base64.b64encode(b'node:s3cret').decode()}\n")
    rules.write_text("basicAuthConfig: {userPasswordPairs: [{username: node, password: d3Jvbmc=}]}")  # another one
    access = PluginAccess(AccessSettings(auth_type="Basic", is_strict=True, file=str(rules)))
    with Served(node, tmp_path, "--token-file", token) as served, outside(served, access) as agent:
        served.said("the agent did not register")
        assert "its user and password are none of the file's" in served.log
        assert agent.poll() == ()
        password = base64.b64encode(b"s3cret").decode()
        rules.write_text(f"basicAuthConfig: {{userPasswordPairs: [{{username: node, password: {password}}}]}}")
        agent.has(NAME)
        assert "s3cret" not in served.log
        assert {(each.reason, each.user) for each in agent.registry.validations} == {
            ("authenticate_failed", "unknown"),
            ("", "node"),
        }


@pytest.mark.slow
def test_hostile_clients_and_pods_keep_no_agent_from_its_answers(node: NodeCgroup, tmp_path: Path) -> None:
    (large,) = node.add_pod("large")
    by_name = pods_of(node, {"large": "reclaimed_cores"})
    (uid,) = (each["metadata"]["uid"] for each in node.pods)
    bad = plugin_pod("bad", annotations={"katalyst.kubewharf.io/qos_level": "\x1b[2Jpwn"}, request="-3Fi")
    pods = {uid: by_name["large"], "bad": bad, "cut": by_name["large"][:-9], "none": b"\xff" * 50}
    holder = Holder(large, "anon", NODE_MIB - FREE_MIB // 2)
    clients = []
    try:
        with Served(node, tmp_path) as served, outside(served) as agent:
            agent.has(NAME)
            for said in (os.urandom(5000), b"PRI * HTTP/2.0\r\n\r\nSM", b""):
                for _ in range(15):
                    clients.append(socket.socket(socket.AF_UNIX))
                    clients[-1].connect(str(served.socket))
                    with contextlib.suppress(OSError):
                        clients[-1].sendall(said)
            answer = agent.thresholds(pods)[NAME]
            assert answer.threshold is not None, (answer, served.log)
            top = agent.top(TopAsk(NAME, "SystemMemory", 1, tuple(pods)), pods)
            assert top.top == TopPods((uid,), 1), (top, served.log)
            assert "\x1b" not in served.log
            assert served.process.poll() is None
    finally:
        holder.stop()
        for each in clients:
            each.close()


@pytest.mark.slow
def test_a_round_of_500_large_pods_is_answered_in_time_and_leaves_no_memory(node: NodeCgroup, tmp_path: Path) -> None:
    padding = {"padding": "x" * 30_000}
    pods = {f"u{number}": plugin_pod(f"u{number}", "reclaimed_cores", annotations=padding) for number in range(500)}
    with Served(node, tmp_path) as served:
        served.said("is served by")
        agent = OutsidePlugins(served.sockets, deadline_s=10)
        try:
            agent.has(NAME)
            process = psutil.Process(served.process.pid)
            took_s = []
            sizes = []
            for _ in range(12):
                began_s = time.monotonic()
                assert agent.thresholds(pods)[NAME].problem is None
                took_s.append(time.monotonic() - began_s)
                sizes.append(process.memory_info().rss >> 20)
        finally:
            agent.close()
    print(f"ms a round: {[round(each * 1000) for each in took_s]}, MiB: {sizes}")
    assert sorted(took_s)[6] < patience(3)
    assert sizes[-1] - sizes[3] < 60
