"""On which CPUs containers run, and which pods have no quota for it."""

from __future__ import annotations

import json

import pytest

from koordebpf.slo.pods.cpu_placement import SharePool
from koordebpf.slo.pods.resource_status import NodePools, node_pools, with_last_good
from koordebpf.strategies.hooks.adjust import UNLIMITED, HookRules, container_adjustment, pod_adjustment
from tests.support.values.hooks import hook_pod_of

POOLS = (SharePool(0, 0, (0, 1, 2)), SharePool(0, 1, (4, 5, 6)))
BE_POOLS = (SharePool(0, 0, (0, 1, 2, 3)), SharePool(0, 1, (4, 5, 6, 7)))
ALL = frozenset({0, 1, 2, 4, 5, 6})
RULES = HookRules(
    hooks=frozenset({"CPUSetAllocator"}), shared_pools=POOLS, be_pools=BE_POOLS, online=frozenset(range(8))
)
STATUS = "scheduling.koordinator.sh/resource-status"


def bound(status: object = None, qos: str = "LS", kube_qos: str = "Burstable"):
    text = status if isinstance(status, str) else json.dumps(status)
    return hook_pod_of(
        qos, {"a": {"limits": {"cpu": "2"}}}, kube_qos=kube_qos, annotations={} if status is None else {STATUS: text}
    )


def cpus(pod, rules=RULES):
    setting = container_adjustment(pod, pod.containers[0], rules).cpuset_cpus
    return None if setting is None else setting.value


def node(number, **resources):
    return {"numaNodeResources": [{"node": number, "resources": resources}]}


@pytest.mark.parametrize("qos", ["LSR", "LSE", "LS", "BE", "SYSTEM", ""])
def test_the_cpus_that_the_scheduler_chose_come_first(qos):
    assert cpus(bound({"cpuset": "1-2"}, qos)) == {1, 2}


@pytest.mark.parametrize(
    ("status", "qos", "expected"),
    [
        (node(1, cpu="2"), "LS", {4, 5, 6}),
        (node(1, **{"kubernetes.io/batch-cpu": 2000}), "LS", {4, 5, 6}),
        (node(1, memory="1Gi"), "LS", ALL),  # memory alone places no CPU
        (node(1, cpu="2"), "BE", frozenset()),  # suppression places it
    ],
)
def test_then_the_pools_of_its_numa_nodes(status, qos, expected):
    assert cpus(bound(status, qos)) == expected


def test_a_best_effort_pod_is_placed_where_another_agent_manages_them():
    rules = HookRules(
        hooks=RULES.hooks, shared_pools=POOLS, be_pools=BE_POOLS, online=RULES.online, places_best_effort=True
    )
    assert cpus(bound(node(1, cpu="2"), "BE"), rules) == {4, 5, 6, 7}


@pytest.mark.parametrize(
    ("qos", "kube_qos", "rules", "expected"),
    [
        ("LS", "Burstable", {}, ALL),
        ("LS", "BestEffort", {}, ALL),
        ("SYSTEM", "Burstable", {"system_cpus": frozenset({7})}, {7}),
        ("SYSTEM", "Burstable", {}, ALL),
        ("BE", "BestEffort", {}, frozenset()),
        ("", "BestEffort", {}, frozenset()),
        ("", "Burstable", {}, ALL),
        ("", "Guaranteed", {}, ALL),
        ("", "Guaranteed", {"kubelet_policy": "static"}, None),
        ("LS", "Burstable", {"kubelet_policy": "static"}, ALL),
        ("", "Burstable", {"shared_pools": None}, None),
    ],
)
def test_then_what_its_class_may_use(qos, kube_qos, rules, expected):
    given = {"hooks": RULES.hooks, "shared_pools": POOLS, "be_pools": BE_POOLS, "online": RULES.online, **rules}
    assert cpus(bound(None, qos, kube_qos), HookRules(**given)) == expected


def test_without_pools_only_the_schedulers_choice_counts():
    rules = HookRules(hooks=RULES.hooks, online=RULES.online)
    assert cpus(bound({"cpuset": "3"}), rules) == {3}
    assert cpus(bound(node(1, cpu="2")), rules) is None


class TestQuota:
    def quotas(self, pod, rules=RULES):
        made = [pod_adjustment(pod, rules), *(container_adjustment(pod, each, rules) for each in pod.containers)]
        return [None if each.cfs_quota_us is None else each.cfs_quota_us.value for each in made]

    def test_a_pod_with_cpus_of_its_own_has_none_at_any_level(self):
        assert self.quotas(bound({"cpuset": "1-2"}, "LSR")) == [UNLIMITED, UNLIMITED]

    def test_a_pod_on_share_pools_keeps_its_own(self):
        assert self.quotas(bound(node(1, cpu="2"))) == [None, None]

    def test_a_setting_leaves_it(self):
        rules = HookRules(hooks=RULES.hooks, shared_pools=POOLS, unsets_quota=False)
        assert self.quotas(bound({"cpuset": "1-2"}, "LSR"), rules) == [None, None]


@pytest.mark.parametrize(
    ("status", "expected", "problem"),
    [
        ({"cpuset": "1,90"}, {1}, "CPU 90 is not online"),
        ({"cpuset": "90"}, None, "CPU 90 is not online"),
        ({"cpuset": "0-999999999"}, None, "must be a list of CPUs"),
        ({"cpuset": "all"}, None, "must be a list of CPUs"),
        ({"cpuset": 7}, None, "Expected `str`"),
        ("nonsense", None, "resource-status"),
        ("[" * 50_000, None, "resource-status"),
        ({"numaNodeResources": [{"node": 9, "resources": {"cpu": 1}}]}, None, "has no NUMA node 9"),
        ({"numaNodeResources": [{"node": "one"}]}, None, "Expected `int`"),
    ],
)
def test_what_cannot_be_used_is_named_and_changes_nothing(status, expected, problem):
    pod = bound(status, "LSR")
    made = container_adjustment(pod, pod.containers[0], RULES)
    assert (None if made.cpuset_cpus is None else made.cpuset_cpus.value) == expected
    assert len(made.problems) == 1
    assert problem in made.problems[0]
    assert made.problems[0].startswith("pod team/web: annotation ")
    assert len(made.problems[0]) < 400


def test_pools_are_read_from_annotations_and_a_bad_one_says_nothing():
    made = node_pools(
        {
            "node.koordinator.sh/cpu-shared-pools": '[{"socket": 0, "node": 0, "cpuset": "0-2"}]',
            "node.koordinator.sh/be-cpu-shared-pools": '[{"node": 0, "cpuset": "x"}]',
            "node.koordinator.sh/system-qos-resource": '{"cpuset": "7", "cpusetExclusive": false}',
            "kubelet.koordinator.sh/cpu-manager-policy": '{"policy": "static"}',
        }
    )
    assert made == NodePools((SharePool(0, 0, (0, 1, 2)),), None, (7,), "static", made.problems)
    assert len(made.problems) == 1
    assert "be-cpu-shared-pools" in made.problems[0]


def test_null_as_go_writes_pools_without_cpus_says_nothing_and_is_no_problem():
    names = ("cpu-shared-pools", "be-cpu-shared-pools", "system-qos-resource")
    assert node_pools({f"node.koordinator.sh/{name}": "null" for name in names}) == NodePools()


def test_more_cpus_than_it_requests_bind_it_to_nothing() -> None:
    pod = bound({"cpuset": "4-7"}, "LSR")  # its container has a limit of two
    made = container_adjustment(pod, pod.containers[0], RULES)
    assert made.cpuset_cpus == container_adjustment(bound(None, "LSR"), pod.containers[0], RULES).cpuset_cpus
    assert made.cfs_quota_us is None
    assert "binds the pod to 4 CPUs, and it requests 2: it is passed over" in made.problems[0]


def test_what_an_init_container_requests_counts_as_for_the_scheduler() -> None:
    init, main = ({name: {"requests": {"cpu": cpu}}} for name, cpu in (("i", "4"), ("a", "2")))
    annotations = {STATUS: json.dumps({"cpuset": "4-7"})}
    pod = hook_pod_of("LSR", main, init=init, kube_qos="Burstable", annotations=annotations)
    assert cpus(pod) == frozenset({4, 5, 6, 7})


GOOD = {
    "node.koordinator.sh/cpu-shared-pools": '[{"socket": 0, "node": 0, "cpuset": "0-2"}]',
    "node.koordinator.sh/be-cpu-shared-pools": '[{"node": 0, "cpuset": "1-2"}]',
    "node.koordinator.sh/system-qos-resource": '{"cpuset": "7"}',
    "kubelet.koordinator.sh/cpu-manager-policy": '{"policy": "static"}',
}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("bad", ["bad", "3", '[{"node": 0, "cpuset": 3}]', "[" * 5000])
def test_what_cannot_be_read_of_pools_stays_as_it_was_last_good(name, bad):
    annotations, (problem,) = with_last_good({**GOOD, name: bad}, GOOD)
    assert annotations == GOOD
    assert problem.startswith(f"annotation {name}")
    assert problem.endswith("; the last good one stays in force")
    # Without a good one there is nothing to keep, and it says nothing.
    for last in (None, {}, {name: "worse"}):
        annotations, problems = with_last_good({**GOOD, name: bad}, last)
        assert (annotations, problems) == ({**GOOD, name: bad}, ())


def test_what_was_removed_is_not_kept():
    assert with_last_good({}, GOOD) == ({}, ())
    assert with_last_good(None, GOOD) == (None, ())
