"""Runtime hooks in a running agent: what pods get in their cgroups, and that all of it is restored."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.files import settled
from koordebpf.units import MIB
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent, left_in
from tests.host.rigs.hook_node import CPUS, IDLE, LIMIT, QUOTA, SHARES, HookNode
from tests.host.rigs.live_node import or_skipped
from tests.support.nodes import NodeCgroup

pytestmark = pytest.mark.slow
BATCH = "BECPUSuppress=false,BatchResource=true"


@pytest.fixture
def hooks(node: NodeCgroup) -> Iterator[HookNode]:
    made = or_skipped(lambda: HookNode(node))
    yield made
    made.close()


def is_limited(hooks: HookNode) -> bool:
    pod, version = hooks.pod("be"), hooks.places.versions["cpu"]
    values = [hooks.value(pod, file) for file in (SHARES, QUOTA, LIMIT)]
    return values == [settled(SHARES, version, 1024), 100_000, 128 * MIB] and all(
        [hooks.value(each, file) for file in (SHARES, QUOTA, LIMIT)]
        == [settled(SHARES, version, 512), 50_000, 64 * MIB]
        for each in hooks.be
    )


def explained(agent: LiveAgent, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "koordebpf", "pod", "explain", "--run-dir", str(agent.run_dir), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def batch_files(hooks: HookNode) -> list[tuple[Path, object]]:
    return [(each, file) for each in (hooks.pod("be"), *hooks.be) for file in (SHARES, QUOTA, LIMIT)]


def test_a_batch_pod_is_limited_to_what_it_asks_for_until_the_agent_stops(hooks: HookNode, tmp_path: Path) -> None:
    before = hooks.texts(batch_files(hooks))
    with LiveAgent(tmp_path, *hooks.arguments(tmp_path, BATCH), "--enforce") as agent:
        until(lambda: is_limited(hooks), lambda: f"the limits, but: {hooks.texts(batch_files(hooks))}\n{agent.log}")
        changes = until(lambda: [line["change"] for line in agent.lines() if "change" in line], "lines of the audit")
        of_pod = [each for each in changes if hooks.pod("be").name in each["path"]]
        assert {each["owner"] for each in of_pod} == {"batchResource"}, changes
        assert agent.stop() == 0
    assert hooks.texts(batch_files(hooks)) == before


def test_a_dry_run_writes_nothing(hooks: HookNode, tmp_path: Path) -> None:
    before = hooks.texts(batch_files(hooks))
    with LiveAgent(tmp_path, *hooks.arguments(tmp_path, BATCH)) as agent:
        agent.said("(dry run)")
        assert hooks.texts(batch_files(hooks)) == before
        assert agent.stop() == 0


def test_what_another_process_writes_is_set_right(hooks: HookNode, tmp_path: Path) -> None:
    with LiveAgent(tmp_path, *hooks.arguments(tmp_path, BATCH), "--enforce") as agent:
        until(lambda: is_limited(hooks), "the limits")
        hooks.file(hooks.be[0], LIMIT).write_text(str(32 * MIB))
        until(lambda: is_limited(hooks), "the limits again", 60)
        assert agent.stop() == 0


def test_a_killed_agent_leaves_limits_that_the_next_one_restores(hooks: HookNode, tmp_path: Path) -> None:
    before = hooks.texts(batch_files(hooks))
    with LiveAgent(tmp_path, *hooks.arguments(tmp_path, BATCH), "--enforce") as agent:
        until(lambda: is_limited(hooks), "the limits")
        agent.stop(signal.SIGKILL)
    assert is_limited(hooks)
    # Without an agent a pod is known by its UID alone.
    page = explained(agent, hooks.pod("be").name.removeprefix("pod")).stdout
    assert "BatchResource, before: " in page
    assert explained(agent, "be").returncode == 2
    with LiveAgent(tmp_path, *hooks.arguments(tmp_path, "BECPUSuppress=false"), "--enforce") as agent:
        until(lambda: hooks.texts(batch_files(hooks)) == before, "what it was before")
        assert agent.stop() == 0


def test_the_agent_after_one_that_was_killed_continues_with_the_limits(hooks: HookNode, tmp_path: Path) -> None:
    before = hooks.texts(batch_files(hooks))
    with LiveAgent(tmp_path, *hooks.arguments(tmp_path, BATCH), "--enforce") as agent:
        until(lambda: is_limited(hooks), "the limits")
        agent.stop(signal.SIGKILL)
    with LiveAgent(tmp_path, *hooks.arguments(tmp_path, BATCH), "--enforce") as agent:
        until(lambda: agent.readiness()[0] or not is_limited(hooks), "a start")
        assert is_limited(hooks)
        # WHEN it has looked at them, and one pod wants less
        hooks.node.pods[0]["spec"]["containers"][1]["resources"] = {}
        hooks.write(tmp_path)
        until(lambda: hooks.value(hooks.pod("be"), LIMIT) is None, lambda: f"no limit, but: {agent.log}")
        assert hooks.value(hooks.be[0], LIMIT) == 64 * MIB
        # What is wanted is written first; what is wanted no more is restored after it.
        until(lambda: hooks.texts([(hooks.be[1], LIMIT)]) == [before[-1]], lambda: f"its own limit, but: {agent.log}")
        changed = until(lambda: [line["change"] for line in agent.lines() if "change" in line], "the audit's lines")
        # The pod's own level and the second container; the first one's files were right.
        assert not any(hooks.be[0].name in each["path"] for each in changed)
        assert agent.stop() == 0
    assert hooks.texts(batch_files(hooks)) == before


def test_a_directory_that_suppression_holds_by_quota_has_no_quotas_below(hooks: HookNode, tmp_path: Path) -> None:
    gates = "BECPUSuppress=true,BatchResource=true"
    arguments = hooks.arguments(tmp_path, gates, cpuSuppressThresholdPercent=65, cpuSuppressPolicy="cfsQuota")
    with LiveAgent(tmp_path, *arguments, "--enforce") as agent:
        until(lambda: hooks.value(hooks.pod("be"), LIMIT) == 128 * MIB, lambda: f"the limit, but: {agent.log}")
        until(lambda: hooks.quota_file.read_text() not in ("-1\n", "max 100000\n"), "the directory's quota")
        assert [hooks.value(each, QUOTA) for each in (hooks.pod("be"), *hooks.be)] == [None] * 3
        # WHEN the directory is held by cpuset, and pods by their own quotas
        hooks.write(tmp_path, cpuSuppressThresholdPercent=65, cpuSuppressPolicy="cpuset")
        until(lambda: is_limited(hooks), lambda: f"the quotas, but: {hooks.texts(batch_files(hooks))}\n{agent.log}", 60)
        assert agent.stop() == 0


def test_a_pod_with_cpus_of_its_own_has_them_and_no_quota(hooks: HookNode, tmp_path: Path) -> None:
    (container,) = hooks.lsr
    v1 = hooks.places.versions["cpu"] == 1
    for each in (hooks.pod("lsr"), container):
        hooks.file(each, QUOTA).write_text("200000" if v1 else "200000 100000")
    files = [(hooks.pod("lsr"), QUOTA), (container, QUOTA), (container, CPUS)]
    before = hooks.texts(files)
    arguments = hooks.arguments(tmp_path, "BECPUSuppress=false,CPUSetAllocator=true")
    with LiveAgent(tmp_path, *arguments, "--enforce") as agent:
        until(
            lambda: [hooks.value(*each) for each in files] == [None, None, frozenset({0})],
            lambda: f"CPU 0 and no quota, but: {hooks.texts(files)}\n{agent.log}",
        )
        assert agent.stop() == 0
    assert hooks.texts(files) == before


def test_cpus_that_are_not_there_are_named_and_bind_no_pod(hooks: HookNode, tmp_path: Path) -> None:
    absent = os.sysconf("SC_NPROCESSORS_CONF") + 7
    annotations = hooks.node.pods[1]["metadata"]["annotations"]
    annotations["scheduling.koordinator.sh/resource-status"] = f'{{"cpuset": "{absent}"}}'
    before = hooks.texts([(hooks.lsr[0], CPUS)])
    gates = "BECPUSuppress=false,CPUSetAllocator=true,BatchResource=true"
    with LiveAgent(tmp_path, *hooks.arguments(tmp_path, gates), "--enforce") as agent:
        agent.said(f"CPU {absent} is not online")
        until(lambda: is_limited(hooks), "the other pod's limits")
        assert hooks.texts([(hooks.lsr[0], CPUS)]) == before
        assert agent.stop() == 0


def test_a_memory_limit_below_what_is_used_is_tried_again(hooks: HookNode, tmp_path: Path) -> None:
    container, grown = hooks.be[0], 24 * MIB
    limit = {"kubernetes.io/batch-cpu": 500, "kubernetes.io/batch-memory": 4 * MIB}
    hooks.node.pods[0]["spec"]["containers"][0]["resources"] = {"limits": limit, "requests": limit}
    if hooks.places.versions["memory"] == 2:
        pytest.skip(f"{OTHER_MACHINE}with cgroup v2 the kernel takes any limit, and reclaims or kills")
    child = os.fork()
    if not child:
        (container / "cgroup.procs").write_text("0")
        held = bytearray(b"x" * grown)
        signal.pause()
        os._exit(len(held) & 1)
    try:
        until(lambda: int((container / "memory.usage_in_bytes").read_text()) > grown, "memory in use")
        with LiveAgent(tmp_path, *hooks.arguments(tmp_path, BATCH), "--enforce") as agent:
            agent.said("EBUSY")
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            child = 0
            until(lambda: hooks.value(container, LIMIT) == 4 * MIB, lambda: f"the limit, but: {agent.log}", 60)
            assert agent.stop() == 0
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


class TestOomScores:
    GATES = "BECPUSuppress=false,OOMScoreAdj=true"

    @pytest.fixture
    def processes(self, hooks: HookNode) -> Iterator[list[subprocess.Popen[bytes]]]:
        """Two processes in the first container of `be`, one in its second, one of another pod."""
        hooks.node.pods[0]["metadata"]["annotations"] = {
            "koordinator.sh/oom-score-adj": "700",
            "koordinator.sh/oom-score-adj-spec": '{"c1": 800}',
        }
        made = []
        for directory in (hooks.be[0], hooks.be[0], hooks.be[1], hooks.lsr[0]):
            made.append(subprocess.Popen(["sleep", "600"]))
            hooks.hierarchies.join(directory, made[-1].pid)
        yield made
        for each in made:
            each.kill()
            each.wait()

    def scores(self, processes: list[subprocess.Popen[bytes]]) -> list[int]:
        return [int(Path(f"/proc/{each.pid}/oom_score_adj").read_text()) for each in processes]

    def test_processes_have_what_the_annotations_say_until_the_agent_stops(
        self, hooks: HookNode, processes: list[subprocess.Popen[bytes]], tmp_path: Path
    ) -> None:
        before = self.scores(processes)
        with LiveAgent(tmp_path, *hooks.arguments(tmp_path, self.GATES), "--enforce") as agent:
            until(lambda: self.scores(processes) == [700, 700, 800, before[3]], lambda: f"scores, but: {agent.log}")
            changes = until(lambda: [line["change"] for line in agent.lines() if "change" in line][2:], "the audit")
            assert changes[0]["owner"] == "oomScoreAdj"
            assert left_in(tmp_path) != []
            assert agent.stop() == 0
        assert self.scores(processes) == before
        assert left_in(tmp_path) == []

    def test_a_dry_run_changes_none(
        self, hooks: HookNode, processes: list[subprocess.Popen[bytes]], tmp_path: Path
    ) -> None:
        before = self.scores(processes)
        with LiveAgent(tmp_path, *hooks.arguments(tmp_path, self.GATES)) as agent:
            agent.said("oom_score_adj: ")
            assert self.scores(processes) == before
            assert agent.stop() == 0


class TestPodExplain:
    def test_it_says_who_set_each_value_and_from_which_field(self, hooks: HookNode, tmp_path: Path) -> None:
        with LiveAgent(tmp_path, *hooks.arguments(tmp_path, BATCH), "--enforce") as agent:
            until(lambda: is_limited(hooks), "the limits")
            page = explained(agent, "default/be").stdout
            assert max(map(len, page.splitlines())) <= 80
            assert "pod default/be, uid " in page
            name = hooks.file(hooks.be[0], LIMIT).name
            assert f"  {name.ljust(22)} {str(64 * MIB).rjust(14)}  BatchResource, before: no limit" in page
            assert "containers[c0] limits kubernetes.io/batch-memory" in " ".join(page.split())
            found = json.loads(explained(agent, "--json", "be").stdout)
            assert [each.get("container") for each in found["cgroups"]] == [
                None,
                *sorted(directory.name for directory in hooks.be),
            ]
            limits = [value for each in found["cgroups"] for value in each["values"] if value["file"] == name]
            assert [value["held"] for value in limits] == [str(amount * MIB) for amount in (128, 64, 64)]
            other = json.loads(explained(agent, "--json", "default/lsr").stdout)
            assert not any(value.get("owners") for each in other["cgroups"] for value in each["values"])
            refused = explained(agent, "stranger")
            assert refused.returncode == 2
            assert "must be a pod of this node" in refused.stderr
            assert agent.stop() == 0

    def test_in_a_dry_run_it_says_what_would_be_written(self, hooks: HookNode, tmp_path: Path) -> None:
        with LiveAgent(tmp_path, *hooks.arguments(tmp_path, BATCH)) as agent:
            agent.said("(dry run)")
            page = explained(agent, "be").stdout
            assert "BatchResource wants 134217728" in " ".join(page.split())
            assert agent.stop() == 0


def test_quotas_of_pods_fit_below_the_directory_that_an_operator_holds_by_quota(
    hooks: HookNode, tmp_path: Path
) -> None:
    """NodeSLO says cpuset, the configuration cfsQuota: pods keep their quotas as far as the directory has room."""
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: koordebpf.io/v1alpha1\nkind: AgentConfiguration\nsuppress: {policy: cfsQuota}\n"
        "featureGates: {BECPUSuppress: true, BatchResource: true}\n"
    )
    before = hooks.texts(batch_files(hooks))
    manifest = hooks.write(tmp_path, cpuSuppressThresholdPercent=0, cpuSuppressPolicy="cpuset")
    arguments = ("--pods", manifest, "--node-cgroup", hooks.node.path, "--config", config, "--enforce")
    root = hooks.path(hooks.node.path / "kubepods/besteffort")
    with LiveAgent(tmp_path, *arguments) as agent:
        until(lambda: hooks.value(hooks.pod("be"), LIMIT) == 128 * MIB, lambda: f"the limit, but: {agent.log}")

        def quotas() -> list[int]:
            found = [hooks.places.parse((root, QUOTA), hooks.quota_file.read_text())]
            found += [hooks.value(each, QUOTA) for each in (hooks.pod("be"), hooks.be[0])]
            return [each for each in found if isinstance(each, int)]

        until(lambda: len(quotas()) == 3, lambda: f"three quotas, but: {quotas()}\n{agent.log}", 60)
        directory, pod, container = quotas()
        assert pod == 100_000 or pod == directory
        assert container <= 50_000
        if hooks.places.versions["cpu"] == 1:
            assert container <= pod <= directory
        assert agent.stop() == 0
    assert hooks.texts(batch_files(hooks)) == before


def test_what_a_pod_asks_for_no_more_is_restored_and_a_change_is_followed(hooks: HookNode, tmp_path: Path) -> None:
    before = hooks.texts(batch_files(hooks))
    with LiveAgent(tmp_path, *hooks.arguments(tmp_path, BATCH), "--enforce") as agent:
        until(lambda: is_limited(hooks), "the limits")
        more = {"kubernetes.io/batch-cpu": 1500, "kubernetes.io/batch-memory": 96 * MIB}
        first, second = hooks.node.pods[0]["spec"]["containers"]
        first["resources"] = {"requests": more, "limits": more}
        hooks.write(tmp_path)
        until(
            lambda: [hooks.value(each, QUOTA) for each in (hooks.pod("be"), *hooks.be)] == [200_000, 150_000, 50_000],
            lambda: f"larger quotas, but: {hooks.texts(batch_files(hooks))}\n{agent.log}",
        )
        assert hooks.value(hooks.pod("be"), LIMIT) == 160 * MIB
        first["resources"] = second["resources"] = {}
        hooks.write(tmp_path)
        until(
            lambda: hooks.texts(batch_files(hooks)) == before,
            lambda: f"what it was, but: {hooks.texts(batch_files(hooks))}\n{agent.log}",
        )
        assert agent.stop() == 0


def test_best_effort_pods_are_idle_where_the_operator_wants_it(hooks: HookNode, tmp_path: Path) -> None:
    pod = hooks.pod("be")
    if not hooks.file(pod, IDLE).exists():
        pytest.skip(f"{OTHER_MACHINE}its kernel has no cpu.idle")
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: koordebpf.io/v1alpha1\nkind: AgentConfiguration\nstrategies: {hooks: {idleBestEffort: true}}\n"
        "featureGates: {BECPUSuppress: false, BatchResource: true, GroupIdentity: true}\n"
    )
    files = [*batch_files(hooks), (pod, IDLE)]
    before = hooks.texts(files)
    arguments = ("--pods", hooks.write(tmp_path), "--node-cgroup", hooks.node.path, "--config", config)
    with LiveAgent(tmp_path, *arguments, "--enforce") as agent:
        until(lambda: hooks.value(pod, IDLE) == 1, lambda: f"an idle pod, but: {agent.log}")
        until(lambda: hooks.value(hooks.be[0], LIMIT) == 64 * MIB, "the limits")
        assert hooks.value(hooks.pod("lsr"), IDLE) == 0
        assert agent.stop() == 0
    assert hooks.texts(files) == before
