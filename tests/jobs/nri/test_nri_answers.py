"""What a container gets of the hooks when a runtime asks, from what a runtime knows of it."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.strategies import FEATURE_GATES
from koordebpf.jobs.nri.answers import ContainerAnswers
from koordebpf.kube.nri.values import Answer, NriContainer, NriPod, NriResources
from koordebpf.kube.runtime_settings import NriSettings
from koordebpf.slo.pods.cpu_placement import SharePool
from koordebpf.strategies.hooks.values import HookRules
from koordebpf.tools.doctor.checks import nri_sources

GIB = 1 << 30


@pytest.fixture
def wake_fd() -> Iterator[int]:
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    yield fd
    os.close(fd)


def pod(qos: str = "BE", parent: str = "/kubepods/besteffort/podu", **annotations: Any) -> NriPod:
    written = {key.replace("__", "/"): json.dumps(value) for key, value in annotations.items()}
    return NriPod("p", "u", "ns", {"koordinator.sh/qosClass": qos} if qos else {}, written, parent)


def batch(**containers: Any) -> dict[str, Any]:
    named = {
        name: {kind: {"kubernetes.io/batch-cpu": cpu, "kubernetes.io/batch-memory": memory} for kind in _KINDS}
        for name, (cpu, memory) in containers.items()
    }
    return {"node.koordinator.sh__extended-resource-spec": {"containers": named}}


_KINDS = ("requests", "limits")


def container(name: str = "main", **known: Any) -> NriContainer:
    return NriContainer(f"id-{name}", name, **known)


def rules(*hooks: str, **changes: Any) -> HookRules:
    return HookRules(hooks=frozenset(hooks), **changes)


def answer(by: HookRules, of: NriPod, to: NriContainer) -> Answer:
    return ContainerAnswers(by, 0, dry_run=False).container(of, to)


def test_a_batch_container_gets_what_the_annotation_says_of_it():
    of = pod(**batch(main=(500, GIB), side=(100, 0)))
    by = rules("BatchResource")
    assert answer(by, of, container()).resources == NriResources(512, 50_000, None, GIB)
    # 0 is no limit.
    assert answer(by, of, container("side")).resources == NriResources(102, 10_000, None, -1)
    assert answer(by, of, container("injected")) == Answer()


@pytest.mark.parametrize(
    ("cpu", "memory", "quota_us", "memory_bytes"),
    [
        (8_192_000, 8 * GIB, None, None),
        (0, 0, None, None),  # no limit
        (500, GIB, 50_000, GIB),
        (501, GIB + 1, None, None),
    ],
)
def test_no_annotation_lifts_a_limit_that_the_kubelet_sets(cpu, memory, quota_us, memory_bytes):
    of = pod("BE", "/kubepods/burstable/podu", **batch(main=(cpu, memory)))
    asked = container(cpu_quota_us=50_000, cpu_period_us=100_000, memory_limit_bytes=GIB)
    found = answer(rules("BatchResource"), of, asked).resources
    assert found is not None
    assert (found.cpu_quota_us, found.memory_limit_bytes) == (quota_us, memory_bytes)


@pytest.mark.parametrize("parent", ["/kubepods/burstable/podu", "/kubepods/besteffort/podu"])
def test_an_update_finds_what_was_adjusted_before_and_keeps_it(parent):
    of, by = pod("BE", parent, **batch(main=(500, GIB))), rules("BatchResource", normalization_ratio=1.2)
    made = answer(by, of, container()).resources
    assert made is not None
    assert made.cpu_quota_us == 41_667
    again = container(cpu_shares=512, cpu_quota_us=41_667, cpu_period_us=100_000, memory_limit_bytes=GIB)
    assert answer(by, of, again).resources == made


def test_without_its_gate_no_hook_is_asked():
    assert answer(rules(), pod(**batch(main=(500, GIB))), container()) == Answer()


def test_a_quota_is_scaled_from_what_the_runtime_says_of_the_container():
    by = rules("CPUNormalization", normalization_ratio=2.0)
    of = pod("LS", "/kubepods/burstable/podu")
    asked = container(cpu_quota_us=100_000, cpu_period_us=50_000)  # two CPUs
    assert answer(by, of, asked).resources == NriResources(cpu_quota_us=100_000)
    assert answer(by, of, container(cpu_quota_us=-1)) == Answer()
    assert answer(by, of, container()) == Answer()


def test_cpus_come_from_the_scheduler_and_from_share_pools():
    by = rules("CPUSetAllocator", shared_pools=(SharePool(0, 0, (2, 3, 5)),))
    bound = pod("LSR", "/kubepods/podu", **{"scheduling.koordinator.sh__resource-status": {"cpuset": "0-1"}})
    assert answer(by, bound, container()).resources == NriResources(cpu_quota_us=-1, cpuset_cpus="0-1")
    assert answer(by, pod("LS"), container()).resources == NriResources(cpuset_cpus="2-3,5")
    # A pod in the best-effort directory has no CPUs of its own: a runtime is not asked to set an empty list.
    assert answer(by, pod("BE"), container()) == Answer()


def test_both_cgroup_drivers_say_whether_a_pod_is_best_effort():
    by = rules("CPUSetAllocator", shared_pools=(SharePool(0, 0, (2,)),))
    for parent in ("/kubepods/besteffort/podu", "kubepods-besteffort-podu.slice"):
        assert answer(by, pod("", parent), container()) == Answer()
    assert answer(by, pod("", "/kubepods/burstable/podu"), container()).resources == NriResources(cpuset_cpus="2")


def test_a_score_is_set_before_the_first_instruction():
    of = pod(**{"koordinator.sh__oom-score-adj": 900})
    assert answer(rules("OOMScoreAdj"), of, container()).resources == NriResources(oom_score_adj=900)


@pytest.mark.parametrize(
    "value",
    [7, {"containers": []}, {"containers": {"main": {"limits": {"kubernetes.io/batch-cpu": "many"}}}}, "x" * 100_000],
)
def test_an_annotation_of_a_wrong_type_is_a_problem_of_this_pod(value):
    of = pod(**{"node.koordinator.sh__extended-resource-spec": value})
    found = answer(rules("BatchResource"), of, container())
    assert found.resources is None
    (problem,) = found.problems
    assert problem.startswith("pod ns/p: annotation node.koordinator.sh/extended-resource-spec")
    assert len(problem) < 600


def test_a_dry_run_counts_and_adjusts_nothing(wake_fd):
    answers = ContainerAnswers(rules("BatchResource"), wake_fd, dry_run=True)
    assert answers.container(pod(**batch(main=(500, GIB))), container()) == Answer()
    assert answers.container(pod(), container()) == Answer()
    assert answers.would_adjust == 1


def test_each_pod_that_starts_wakes_the_loop(wake_fd):
    answers = ContainerAnswers(rules("BatchResource"), wake_fd, dry_run=False)
    answers.pod_started(pod())
    answers.pod_started(pod())
    assert os.eventfd_read(wake_fd) == 2


class TestDoctor:
    def config(self, path: Path, *, hook: bool = True) -> AgentConfig:
        gates = {**FEATURE_GATES, "BatchResource": hook}
        return replace(AgentConfig(), nri=NriSettings(enabled=True, socket=str(path)), feature_gates=gates)

    def test_it_says_nothing_of_what_is_off(self):
        assert nri_sources(AgentConfig()) == ()

    def test_it_says_that_no_runtime_listens(self, tmp_path):
        (found,) = nri_sources(self.config(tmp_path / "nri.sock"))
        assert not found.works
        assert "no runtime listens at" in found.reason
        assert "disable = false" in found.remedy

    def test_it_says_that_no_hook_is_on(self, tmp_path):
        (found,) = nri_sources(self.config(tmp_path / "nri.sock", hook=False))
        assert "no runtime hook's feature gate is on" in found.reason

    def test_it_finds_one_that_listens(self, tmp_path):
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(tmp_path / "nri.sock"))
            listening.listen()
            (found,) = nri_sources(self.config(tmp_path / "nri.sock"))
        assert found.works
