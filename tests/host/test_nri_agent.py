"""A running agent that a container runtime asks by NRI: what containers get, and how the agent reports it."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordebpf.units import MIB
from tests.contract.apiserver import until
from tests.contract.nri_runtime import NRI, NriRuntimeServer
from tests.host.live_agent import LiveAgent
from tests.host.rigs.hook_node import QUOTA, HookNode
from tests.host.rigs.live_node import or_skipped
from tests.support.nodes import NodeCgroup
from tests.support.patience import patience

pytestmark = pytest.mark.slow

GATES = "BECPUSuppress=false,BatchResource=true"
AMOUNTS = {"kubernetes.io/batch-cpu": "500", "kubernetes.io/batch-memory": str(64 * MIB)}
CONFIG = """
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
nri:
  enabled: true
  backoff: 20ms
  socket: {}
"""

PROXY_CONFIG = """
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
runtimeProxy:
  enabled: true
  socket: {}
  configFile: {}
"""


@pytest.fixture
def hooks(node: NodeCgroup) -> Iterator[HookNode]:
    made = or_skipped(lambda: HookNode(node))
    yield made
    made.close()


@pytest.fixture
def runtime(sockets: Path) -> Iterator[NriRuntimeServer]:
    with NriRuntimeServer(sockets / "nri.sock") as server:
        yield server


def arguments(hooks: HookNode, folder: Path, runtime: NriRuntimeServer, **fields: Any) -> tuple[object, ...]:
    config = folder / "config.yaml"
    config.write_text(CONFIG.format(runtime.path))
    return *hooks.arguments(folder, GATES, **fields), "--config", config


def best_effort(**annotations: str) -> Any:
    written = {"node.koordinator.sh/extended-resource-spec": json.dumps({"containers": {"main": _amounts()}})}
    return NRI["PodSandbox"](
        name="be",
        uid="uid-be",
        namespace="default",
        labels=[{"key": "koordinator.sh/qosClass", "value": "BE"}],
        annotations=[{"key": key, "value": value} for key, value in {**written, **annotations}.items()],
        linux={"cgroup_parent": "/kubepods/besteffort/poduid-be"},
    )


def _amounts() -> dict[str, Any]:
    return {"requests": AMOUNTS, "limits": AMOUNTS}


MAIN = NRI["Container"](id="c-1", name="main")


def test_a_container_has_its_batch_resources_before_it_starts(hooks, runtime, tmp_path):
    with LiveAgent(tmp_path, *arguments(hooks, tmp_path, runtime), "--enforce") as agent:
        connection = runtime.accept()
        assert connection.registered().plugin_name == "koordebpf"
        connection.call("Configure", runtime_name="containerd", runtime_version="v2.2.1")
        connection.call("Synchronize")
        agent.said("NRI: registered with containerd v2.2.1")
        resources = connection.call("CreateContainer", pod=best_effort(), container=MAIN).adjust.linux.resources
        assert (resources.cpu.shares.value, resources.cpu.quota.value) == (512, 50_000)
        assert resources.memory.limit.value == 64 * MIB
        (update,) = connection.call("UpdateContainer", pod=best_effort(), container=MAIN).update
        assert update.linux.resources == resources
        # A container of a pod that asks for nothing, and one that the annotation does not name.
        other = NRI["PodSandbox"](name="web", uid="u", namespace="team")
        assert not connection.call("CreateContainer", pod=other, container=MAIN).HasField("adjust")
        side = NRI["Container"](id="c-2", name="side")
        assert not connection.call("CreateContainer", pod=best_effort(), container=side).HasField("adjust")
        until(lambda: agent.metric("koordebpf_nri_adjusted_containers_total") == 2, "the metric")
        assert agent.metric("koordebpf_nri_registered") == 1
        assert "[+]NRI" in agent.get("/readyz?verbose")[1].splitlines()
        assert agent.stop() == 0
        assert not connection.is_open


def test_a_dry_run_adjusts_nothing_and_counts(hooks, runtime, tmp_path):
    with LiveAgent(tmp_path, *arguments(hooks, tmp_path, runtime)) as agent:
        connection = runtime.accept()
        assert connection.registered().plugin_name == "koordebpf-dry-run"
        connection.call("Configure")
        connection.call("Synchronize")
        assert not connection.call("CreateContainer", pod=best_effort(), container=MAIN).HasField("adjust")
        until(lambda: agent.metric("koordebpf_nri_adjusted_containers_total") == 1, "the metric")
        assert agent.stop() == 0


def test_an_annotation_that_cannot_be_read_is_named_and_changes_nothing_for_others(hooks, runtime, tmp_path):
    with LiveAgent(tmp_path, *arguments(hooks, tmp_path, runtime), "--enforce") as agent:
        connection = runtime.accept().ready()
        name = "node.koordinator.sh/extended-resource-spec"
        for text in ("{", '{"containers": 7}', '{"containers":{"main":{"limits":{"kubernetes.io/batch-cpu":"x"}}}}'):
            bad = connection.call("CreateContainer", pod=best_effort(**{name: text}), container=MAIN)
            assert not bad.HasField("adjust")
        assert connection.call("CreateContainer", pod=best_effort(), container=MAIN).HasField("adjust")
        agent.said(f"pod default/be: annotation {name}")
        assert agent.metric("koordebpf_nri_errors_total") == 3
        assert agent.stop() == 0


def test_the_rules_follow_the_nodeslo(hooks, runtime, tmp_path):
    given = arguments(hooks, tmp_path, runtime)
    with LiveAgent(tmp_path, *given, "--enforce") as agent:
        connection = runtime.accept().ready()
        ask = {"pod": best_effort(), "container": MAIN}
        assert connection.call("CreateContainer", **ask).adjust.linux.resources.cpu.quota.value == 50_000
        hooks.write(tmp_path, cpuSuppressPolicy="cfsQuota")
        until(
            lambda: connection.call("CreateContainer", **ask).adjust.linux.resources.cpu.quota.value == -1,
            "no quotas while suppression is by quota",
        )
        assert agent.stop() == 0


def test_a_pod_that_starts_makes_a_round_due_in_which_its_own_level_is_written(hooks, runtime, tmp_path):
    with LiveAgent(tmp_path, *arguments(hooks, tmp_path, runtime), "--enforce") as agent:
        connection = runtime.accept().ready()
        until(lambda: hooks.value(hooks.pod("be"), QUOTA) == 100_000, lambda: f"the pod's quota\n{agent.log}")

        def rounds() -> int:
            return agent.frames.read_bytes().count(b"\n")

        waits_s = []
        for _ in range(6):
            time.sleep(0.15)
            before, started_s = rounds(), time.monotonic()
            connection.call("StateChange", event=1, pod=best_effort())
            until(lambda before=before: rounds() > before, "a round")
            waits_s.append(time.monotonic() - started_s)
        # Without it a round comes each second: half a second later on average.
        assert sum(waits_s) / len(waits_s) < patience(0.25), waits_s
        assert agent.stop() == 0


def test_a_killed_agent_is_followed_by_the_next_one(hooks, runtime, tmp_path):
    given = arguments(hooks, tmp_path, runtime)
    for _ in range(2):
        with LiveAgent(tmp_path, *given, "--enforce") as agent:
            connection = runtime.accept().ready()
            assert connection.call("CreateContainer", pod=best_effort(), container=MAIN).HasField("adjust")
            agent.stop(signal.SIGKILL)
            until(lambda connection=connection: not connection.is_open, "the end of the connection")


def test_without_a_runtime_the_agent_works_and_says_so(hooks, runtime, tmp_path):
    runtime.close()
    with LiveAgent(tmp_path, *arguments(hooks, tmp_path, runtime), "--enforce") as agent:
        agent.said("no runtime listens there")
        until(lambda: hooks.value(hooks.pod("be"), QUOTA) == 100_000, "the pod's quota")
        assert agent.readiness()[0] == 200
        assert f"[!]NRI {runtime.path}: no runtime listens there" in agent.get("/readyz?verbose")[1].splitlines()
        with NriRuntimeServer(runtime.path) as late:
            late.accept().ready()
            agent.said("NRI: registered")
        assert agent.stop() == 0


def test_only_an_agent_that_acts_serves_the_runtime_proxy(hooks, sockets, tmp_path):
    config, file = sockets / "config.yaml", sockets / "hooks.d/koordebpf.json"
    config.write_text(PROXY_CONFIG.format(sockets / "s.sock", file))
    given = (*hooks.arguments(tmp_path, GATES), "--config", config)
    with LiveAgent(tmp_path, *given) as dry_run:
        dry_run.becomes_ready()
        assert not file.parent.exists()
        assert dry_run.stop() == 0
    with LiveAgent(tmp_path, *given, "--enforce") as agent:
        agent.said("runtime proxy: serving")
        assert json.loads(file.read_text())["remote-endpoint"] == str(sockets / "s.sock")
        until(lambda: agent.metric("koordebpf_runtime_proxy_registered") == 1, "the metric")
        assert agent.stop() == 0
    assert not file.exists()
