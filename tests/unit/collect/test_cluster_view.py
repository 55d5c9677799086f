"""What the agent makes of each state of its source: pods, NodeSLO, and sentences on what is wrong."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from koordebpf.collect.cluster_view import ClusterView, check_configuration
from koordebpf.errors import ConfigError
from koordebpf.kube.cache.objects import ClusterState, Namespace, Node, NodeResourceTopology, NodeStatus, ObjectMeta
from koordebpf.slo.strategies.cpu_burst import DEFAULT_CPU_BURST

GOOD: dict[str, Any] = {
    "resourceUsedThresholdWithBE": {"enable": True, "memoryEvictThresholdPercent": 80},
    "cpuBurstStrategy": {"policy": "auto"},
    "hostApplications": [{"name": "yarn", "qos": "BE"}],
}


def state(version: int, *, labels: dict[str, str] | None = None, config: object = None, **spec: Any) -> ClusterState:
    return ClusterState(
        version=version,
        synced_at_ns=version,
        node=Node(metadata=ObjectMeta(name="n1", labels=labels)),
        nodeslo=msgspec.Raw(json.dumps({"spec": spec}).encode()) if spec else None,
        slo_controller_config={"resource-threshold-config": json.dumps(config)} if config else None,
    )


def test_an_unusable_part_is_reported_while_it_lasts_and_the_others_continue() -> None:
    known = ClusterView()
    known.learn(state(1, **GOOD))
    known.learn(state(2, **{**GOOD, "cpuBurstStrategy": {"cpuBurstPercent": 0}, "hostApplications": []}))
    assert known.spec is not None
    assert known.spec.cpuBurstStrategy.policy == "auto"
    assert known.host_applications == {}
    assert known.strategy is not None
    assert known.strategy.memoryEvictThresholdPercent == 80
    (problem,) = known.problems
    assert problem == (
        "spec.cpuBurstStrategy.cpuBurstPercent: 0: must be an integer >= 1; the last good strategy stays in force"
    )
    again = state(3, **{**GOOD, "cpuBurstStrategy": {"cpuBurstPercent": 0}, "hostApplications": []})
    known.learn(again)
    assert known.problems == (problem,)
    known.learn(state(4, **{**GOOD, "cpuBurstStrategy": {}}))
    assert known.problems == ()
    assert known.spec.cpuBurstStrategy == DEFAULT_CPU_BURST
    assert known.host_applications == {"host-best-effort/yarn": "yarn"}


def test_what_the_webhook_would_refuse_is_in_force_and_reported() -> None:
    known = ClusterView()
    known.learn(state(1, resourceUsedThresholdWithBE={"enable": True, "memoryEvictThresholdPercent": 130}))
    assert known.strategy is not None
    assert known.strategy.memoryEvictThresholdPercent == 130
    (problem,) = known.problems
    assert problem == (
        "spec.resourceUsedThresholdWithBE.memoryEvictThresholdPercent: 130: must be 0…100; "
        "it is in force all the same, as in koordlet"
    )
    known.learn(state(2, config={"clusterStrategy": {"memoryEvictLowerPercent": 75}}))
    (problem,) = known.problems
    assert problem.startswith("resource-threshold-config.memoryEvictThresholdPercent: 70: must be greater than")
    known.learn(state(3, **GOOD))
    assert known.problems == ()


@pytest.mark.parametrize(
    ("fields", "problems"),
    [
        (
            {"cpuSuppressPolicy": "cfsquota"},
            ["Policy: 'cfsquota': must be one of cpuset, cfsQuota; cpuset is in force all the same, as in koordlet"],
        ),
        (
            {"cpuSuppressPolicy": "cpuIdle"},
            [
                "Policy: 'cpuIdle': must be one of cpuset, cfsQuota; cpuset is in force all the same, as in koordlet",
                "Policy: Koordinator has no cpuIdle: it is suppress.policy of the agents' settings",
            ],
        ),
        (
            {"cpuSuppressMinPercent": 80},
            [
                "MinPercent: 80: must not be more than cpuSuppressThresholdPercent (65): "
                "best-effort pods are held to it whatever the others use"
            ],
        ),
        ({"cpuSuppressMinPercent": 65}, []),
    ],
)
def test_what_of_suppression_cannot_be_meant_so_is_reported(fields: dict[str, Any], problems: list[str]) -> None:
    known = ClusterView()
    known.learn(state(1, resourceUsedThresholdWithBE={"enable": True, **fields}))
    begin = "spec.resourceUsedThresholdWithBE.cpuSuppress"
    assert list(known.problems) == [f"{begin}{each}" for each in problems]


def test_what_is_no_object_leaves_everything() -> None:
    known = ClusterView()
    known.learn(state(1, **GOOD))
    known.learn(ClusterState(version=2, synced_at_ns=2, nodeslo=msgspec.Raw(b'{"spec": []}')))
    assert known.strategy is not None
    assert known.problems == ("spec: []: must be an object; the last good NodeSLO stays in force",)


def test_the_configmap_serves_a_node_without_nodeslo_by_its_labels() -> None:
    config = {
        "clusterStrategy": {"enable": True},
        "nodeStrategies": [{"nodeSelector": {"matchLabels": {"pool": "a"}}, "memoryEvictThresholdPercent": 60}],
    }
    known = ClusterView()
    known.learn(state(1, config=config))
    assert known.strategy is not None
    assert known.strategy.memoryEvictThresholdPercent == 70
    known.learn(state(2, config=config, labels={"pool": "a"}))
    assert known.strategy.memoryEvictThresholdPercent == 60
    known.learn(state(3, config=config, labels={"pool": "a"}, **GOOD))
    assert known.strategy.memoryEvictThresholdPercent == 80
    known.learn(state(4))
    assert known.strategy is None
    assert known.host_applications == {}


def test_an_unusable_first_state_of_a_file_ends_the_start() -> None:
    check_configuration(state(1, **GOOD))
    with pytest.raises(ConfigError, match=r"spec\.cpuBurstStrategy\.policy"):
        check_configuration(state(1, **{**GOOD, "cpuBurstStrategy": {"policy": "x"}}))


def test_it_is_whole_once_pods_and_node_were_reported() -> None:
    known = ClusterView()
    known.learn(msgspec.structs.replace(state(1, **GOOD), synced_at_ns=0))  # the NodeSLO came first
    assert (known.is_whole, known.strategy is None) == (False, False)
    known.learn(state(2, **GOOD))
    assert known.is_whole


@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("capacity", "memory"),
        ("capacity", "cpu"),
        ("allocatable", "memory"),
        ("allocatable", "cpu"),
        ("allocatable", "kubernetes.io/batch-cpu"),
        ("allocatable", "kubernetes.io/batch-memory"),
    ],
)
def test_a_node_whose_amounts_cannot_be_read_leaves_the_last_good_one(field: str, name: str) -> None:
    known = ClusterView()
    good = state(1, **GOOD)
    known.learn(good)
    status = NodeStatus(**{field: {name: "much"}})
    known.learn(msgspec.structs.replace(good, version=2, node=Node(metadata=ObjectMeta(name="n1"), status=status)))
    assert known.node is good.node
    (problem,) = known.problems
    assert problem == (
        f"node.status.{field}.{name}: 'much': must be a Kubernetes quantity such as 500m, 2Gi or 1e9; "
        "the last good Node stays in force"
    )


def test_share_pools_that_cannot_be_read_leave_the_last_good_ones() -> None:
    name = "node.koordinator.sh/cpu-shared-pools"
    pools = '[{"socket": 0, "node": 0, "cpuset": "2-7"}]'

    def seen(version: int, text: str, other: str) -> ClusterState:
        meta = ObjectMeta(name="n1", annotations={name: text, "other": other})
        return msgspec.structs.replace(state(version), topology=NodeResourceTopology(metadata=meta))

    known = ClusterView()
    known.learn(seen(1, pools, "a"))
    known.learn(seen(2, "bad", "b"))
    assert known.topology is not None
    assert known.topology.metadata.annotations == {name: pools, "other": "b"}
    (problem,) = known.problems
    assert problem.startswith(f"annotation {name}: 'bad': ")
    assert problem.endswith("; the last good one stays in force")
    # It lasts, as the same object and with one sentence, until it can be read.
    topology = known.topology
    known.learn(msgspec.structs.replace(known.reported or state(3), version=3))
    assert known.topology is topology
    assert known.problems == (problem,)
    known.learn(seen(4, "worse", "b"))
    assert known.topology.metadata.annotations == {name: pools, "other": "b"}
    known.learn(seen(5, "[]", "b"))
    assert known.topology.metadata.annotations == {name: "[]", "other": "b"}
    assert known.problems == ()
    known.learn(state(6))
    assert known.topology is None


class TestLabelsOfNamespaces:
    here = (Namespace(ObjectMeta(name="be", labels={"tier": "gold"})),)

    def known(self) -> ClusterView:
        return ClusterView(labels_max_age_ns=90)

    def seen(self, since_ns: int | None = None, *, has_list: bool = True) -> ClusterState:
        here = self.here if has_list else None
        return msgspec.structs.replace(state(1), namespaces=here, namespaces_since_ns=since_ns)

    def test_they_count_while_the_source_is_sure_of_them(self) -> None:
        known = self.known()
        assert not known.refresh_namespaces(self.seen(), 10_000)
        assert (known.namespaces, known.problems) == (self.here, ())

    def test_they_count_for_a_while_after_the_watch_was_lost_and_then_no_more(self) -> None:
        known = self.known()
        assert not known.refresh_namespaces(self.seen(1000), 1090)
        assert known.namespaces == self.here
        assert known.refresh_namespaces(self.seen(1000), 1091)
        assert known.namespaces == ()
        assert "every exemption counts where eviction.exemptions selects by label" in known.problems[0]
        assert not known.refresh_namespaces(self.seen(1000), 2000)
        known.learn(self.seen(1000))
        assert len(known.problems) == 1
        assert known.refresh_namespaces(self.seen(), 2001)
        assert (known.namespaces, known.problems) == (self.here, ())

    def test_a_source_that_never_had_them_is_a_problem_a_while_after_the_start(self) -> None:
        known = self.known()
        assert not known.refresh_namespaces(self.seen(has_list=False), 1000)
        assert not known.refresh_namespaces(self.seen(has_list=False), 1090)
        assert known.refresh_namespaces(self.seen(has_list=False), 1091)
        assert known.namespaces == ()

    def test_where_no_caller_asks_for_them_they_are_nothing(self) -> None:
        known = ClusterView()
        assert not known.refresh_namespaces(self.seen(1), 1 << 40)
        assert (known.namespaces, known.problems) == ((), ())
