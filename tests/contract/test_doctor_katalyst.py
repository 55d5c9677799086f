"""What `koordebpf doctor` says of Katalyst's eviction manager: each plugin inside, and what carries decisions out."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from koordebpf.configuration.settings import AgentConfig
from koordebpf.kernel.signals import SignalSource
from koordebpf.kube.cache.cnr import CNR_PATH
from koordebpf.state.pods.requests import RECLAIMED_CPU
from koordebpf.strategies.katalyst import doctor
from koordebpf.strategies.katalyst.decide import GATE, KATALYST_EVICTION
from koordebpf.strategies.katalyst.settings import KatalystSettings
from koordebpf.tools.doctor.checks import own_sources
from tests.contract.apiserver import Exchange, Server, gives, status
from tests.contract.eviction_plugin import Plugin
from tests.support.played_signals import StalledNode

REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
CNR = {"metadata": {"name": "n1"}}

Sources = Callable[..., dict[str, SignalSource]]


@pytest.fixture
def sources(tmp_path: Path, kubeconfig: Path) -> Iterator[Sources]:
    """Give the lines by their signal, of an agent with these settings of the manager and of its own."""
    (tmp_path / "cgroup").mkdir()
    node = StalledNode(tmp_path / "cgroup", 2)
    quiet = {"sockets": "", "notices": "", "taints": False}

    def _sources(settings: dict[str, Any] | None = None, **config: Any) -> dict[str, SignalSource]:
        made = AgentConfig(kubeconfig=kubeconfig, **config)
        asked = KatalystSettings(**{**quiet, **(settings or {})})
        strategies = replace(made.strategies, **{KATALYST_EVICTION.name: asked})
        made = replace(made, strategies=strategies, feature_gates={**made.feature_gates, GATE: True})
        return {each.signal: each for each in doctor.sources(made, node.watch.scope, node.watch)}

    with contextlib.closing(node):
        yield _sources


def test_without_its_feature_gate_nothing_is_said(tmp_path: Path) -> None:
    with contextlib.closing(StalledNode(tmp_path, 2)) as node:
        assert own_sources(AgentConfig(), node.watch.scope, node.watch) == ()


def test_with_its_feature_gate_it_is_asked(tmp_path: Path) -> None:
    config = AgentConfig(feature_gates={GATE: True})
    with contextlib.closing(StalledNode(tmp_path, 2)) as node:
        found = {each.signal for each in own_sources(config, node.watch.scope, node.watch)}
    assert {"plugins outside", "taints of conditions"} <= found


def test_what_is_off_is_named_with_its_setting(sources: Sources) -> None:
    found = sources({"plugins": ("*", "-system-memory-pressure-eviction-plugin")})
    assert found["system-memory-pressure"].how == "off: eviction.katalyst.plugins does not name it"
    assert found["network"].how == "off: inner.network.isOn"
    assert found["plugins outside"].how == "off: eviction.katalyst.sockets"
    assert found["taints of conditions"].how == "off: eviction.katalyst.taints"
    assert found["notices of soft evictions"].how == "off: eviction.katalyst.notices"
    assert found["system-memory-pressure"].works and found["network"].works


def test_a_plugin_that_lacks_something_says_what_and_what_to_do(sources: Sources, server: Server) -> None:
    found = sources(source="api", node_name="n1")
    line = found["reclaimed-resource-pressure"]
    assert (line.works, line.cost) == (False, "it judges nothing")
    assert line.reason == "there is no CustomNodeResource of this node"
    assert line.remedy.startswith("Install Katalyst's CRD and its agent, or switch the plugin off")
    memory = found["system-memory-pressure"]
    assert (memory.works, memory.how) == (True, "free memory and its watermark")  # the node has no burstable pods
    assert memory.reason.startswith("no PSI of pods")
    assert "NUMA node" in found["numa-memory-pressure"].how
    assert not any("NUMA node" in each.how for name, each in found.items() if name != "numa-memory-pressure")
    server.on(f"{CNR_PATH}/n1", gives(200, CNR))
    with_one = sources(source="api", node_name="n1")["reclaimed-resource-pressure"]
    assert with_one.reason != line.reason


def test_the_pressure_of_pods_is_judged_where_the_burstable_level_tells_it(sources: Sources, tmp_path: Path) -> None:
    burstable = tmp_path / "cgroup/kubepods/burstable"
    burstable.mkdir()
    line = " avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    (burstable / "memory.pressure").write_text(f"some{line}full{line}")
    found = sources()["system-memory-pressure"]
    assert (found.works, found.how, found.reason) == (True, "judges", "")


@pytest.mark.parametrize(
    ("config", "reply", "reason", "remedy"),
    [
        ({"source": "file", "node_name": "n1"}, None, "no files are given", "Use source api"),
        ({"source": "api"}, None, "this node's name is not known", "Use source api"),
        ({"source": "api", "node_name": "n1"}, None, "there is none of node n1", "Install Katalyst's CRD"),
        (
            {"source": "api", "node_name": "n1"},
            gives(403, status(403, "Forbidden", "no")),
            "403",
            "Allow get on custom",
        ),
        ({"source": "api", "node_name": "n1"}, gives(500, b"no"), "500", ""),
        ({"source": "api", "node_name": "n1"}, gives(200, CNR), "", ""),
    ],
)
def test_why_there_is_no_custom_node_resource(
    config: dict[str, Any], reply: Any, reason: str, remedy: str, sources: Sources, server: Server
) -> None:
    if reply is not None:
        server.on(f"{CNR_PATH}/n1", reply)
    line = sources(**config)["CustomNodeResource"]
    assert line.works is (not reason)
    assert reason in line.reason and line.remedy.startswith(remedy)
    assert (line.cost == "plugins that need it judge nothing") is bool(reason)
    assert (line.how == "of node n1") is line.works


@pytest.mark.parametrize(
    ("allocatable", "reason"),
    [("1000", ""), ("many", "must be"), (None, "the files with pods have none")],
)
def test_one_in_the_files_is_judged_too(allocatable: str | None, reason: str, sources: Sources, tmp_path: Path) -> None:
    path = tmp_path / "objects.json"
    status = {"resources": {"allocatable": {RECLAIMED_CPU: allocatable}}}
    meta = {
        "apiVersion": "node.katalyst.kubewharf.io/v1alpha1",
        "kind": "CustomNodeResource",
        "metadata": {"name": "n"},
    }
    listed = {"apiVersion": "v1", "kind": "PodList", "items": []}
    path.write_text(json.dumps(listed if allocatable is None else meta | {"status": status}))
    found = sources(source="file", files=(path,))
    line = found["CustomNodeResource"]
    assert (line.works, line.how) == ((True, "of the files with pods") if not reason else (False, ""))
    assert reason in line.reason
    assert found["reclaimed-resource-pressure"].works is (not reason)


@pytest.mark.parametrize(
    ("config", "denied", "reason"),
    [
        ({"source": "file", "node_name": "n1"}, (), "source file knows no API server"),
        ({"source": "api"}, (), "this node's name is not known"),
        ({"source": "kubelet", "node_name": "n1"}, (), ""),
        ({"source": "api", "node_name": "n1"}, ("patch",), "no right to patch node n1"),
        ({"source": "api", "node_name": "n1"}, ("get", "patch"), "no right to get and patch node n1"),
    ],
)
def test_taints_need_an_api_server_a_name_and_two_rights(
    config: dict[str, Any], denied: tuple[str, ...], reason: str, sources: Sources, server: Server
) -> None:
    def review(exchange: Exchange) -> None:
        assert b'"name":"n1"' in exchange.request.body and b'"nodes"' in exchange.request.body
        allowed = not any(f'"verb":"{each}"'.encode() in exchange.request.body for each in denied)
        exchange.answer(201, {"status": {"allowed": allowed}})

    server.on(REVIEWS, review)
    line = sources({"taints": True}, **config)["taints of conditions"]
    assert (line.works, line.reason) == (not reason, reason)
    assert line.how == ("" if reason else "on node n1, with --enforce")
    server.on(REVIEWS, gives(500, b"no"))
    if config.get("source") != "file" and "node_name" in config:
        assert "500" in sources({"taints": True}, **config)["taints of conditions"].reason


def test_notices_need_a_directory_that_can_be_written(sources: Sources, tmp_path: Path) -> None:
    def line(path: Path) -> SignalSource:
        return sources({"notices": str(path)})["notices of soft evictions"]

    assert line(tmp_path).how == f"in {tmp_path}, with --enforce"
    assert line(tmp_path / "a/b").how == f"in {tmp_path / 'a/b'}, made for the first pod that wants one, with --enforce"
    (tmp_path / "file").write_text("")
    found = line(tmp_path / "file/below")
    assert (found.works, found.reason) == (False, f"{tmp_path / 'file'} cannot be written")
    if os.geteuid():
        (tmp_path / "closed").mkdir(mode=0o500)
        assert not line(tmp_path / "closed").works


def test_each_socket_outside_says_whether_its_plugin_answers(sources: Sources, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    found = sources({"sockets": str(folder)})["plugins outside"]
    assert (found.works, found.reason, found.cost) == (False, f"{folder} is not there", "none is called")
    folder.mkdir()
    assert sources({"sockets": str(folder)})["plugins outside"].how == f"0 sockets in {folder}"
    plugin = Plugin(folder / "a.sock", "mine")
    try:
        lines = sources({"sockets": str(folder)})
        assert lines["plugins outside"].how == f"1 socket in {folder}"
        assert lines["mine"].works and lines["mine"].how == "answers by a.sock"
        plugin.raw = b"\xff"
        lines = sources({"sockets": str(folder)})
        assert (lines["a.sock"].works, lines["a.sock"].cost) == (False, "this plugin is not called")
    finally:
        plugin.stop()
