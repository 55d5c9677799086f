"""Suppression on nodes that are not as they should be: CPUs that went, objects that are wrong, two who bound a pod."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace

from koordebpf.kernel.cgroup.files import CgroupFile, broken_rule
from koordebpf.state.cpu.measured import Cpu, CpuManager, CpuTopology
from koordebpf.state.cpu.view import be_limit_millicpu
from koordebpf.strategies.cpu_suppress.choose import be_pools, withheld_cpus
from koordebpf.strategies.cpu_suppress.plan import plan_suppress
from koordebpf.strategies.cpu_suppress.values import (
    KeptSuppression,
    MemoryHold,
    SuppressSettings,
    SuppressState,
    adopted,
)
from koordebpf.units import NS_PER_S
from tests.support.values.builders import NOW_NS, ls_pod, pod, supposed
from tests.support.values.cpu_nodes import (
    BE_ROOT,
    POD_ALLOCATIONS,
    RESERVATION,
    RESOURCE_STATUS,
    bound,
    node,
    wanted,
    with_annotations,
)
from tests.support.values.machines import machine, without

CPUS, QUOTA, IDLE = CgroupFile.CPUSET_CPUS, CgroupFile.CPU_QUOTA, CgroupFile.CPU_IDLE
USING = SuppressState(cpuset="using", quota="recovered")


class TestCpusThatWent:
    def test_those_that_kubelet_still_counts_have_no_owner(self):
        # GIVEN a Node of 8 CPUs, as kubelet counted at its start, of which four are offline since
        view = node(
            without(machine(cores=8), [4, 5, 6, 7]), capacity="8", node_used=1000, used={"web": 1000}, be_used=0
        )
        plan = plan_suppress(view, USING)
        # THEN what is left is of the four: 2.6 − 1 CPUs
        assert (plan.amount.capacity_millicpu, plan.be_millicpu) == (4000, 1600)
        assert plan.cpus == (0, 1)

    def test_a_node_that_says_less_than_there_is_is_believed(self):
        assert plan_suppress(node(capacity="4")).amount.capacity_millicpu == 4000

    def test_what_kubelet_keeps_back_is_counted_on_its_own_terms(self):
        view = node(without(machine(cores=8), [6, 7]), capacity="8", allocatable={"cpu": "7500m"})
        assert (view.cpu.capacity_millicpu, view.cpu.reserved_millicpu) == (6000, 500)

    def test_cpu_0_offline(self):
        plan = plan_suppress(node(without(machine(cores=4, threads=2), [0]), be_now=range(1, 8)), USING)
        assert set(plan.cpus) <= set(range(1, 8))
        assert len(plan.cpus) == 5  # 65 % of 7

    def test_numbers_with_holes_and_a_node_of_one_cpu(self):
        cpus = (Cpu(3, 3, 0, 0), Cpu(17, 3, 0, 0), Cpu(40, 40, 9, 5), Cpu(512, 512, 9, 7))
        plan = plan_suppress(node(CpuTopology(cpus), node_used=600, used={"web": 600}, be_used=0), USING)
        assert plan.cpus == (3, 17)

    def test_a_directory_whose_last_cpu_went_is_held_again(self):
        # GIVEN v1: the kernel took CPUs 0 and 1 out of every set, and nothing is left of those of best-effort pods
        view = node(without(machine(cores=8), [0, 1]), be_now=[], node_used=3900, used={"web": 3900}, be_used=0)
        plan = plan_suppress(view, USING)
        assert plan.skipped is None
        assert wanted(plan, CPUS) == dict.fromkeys(
            [BE_ROOT, f"{BE_ROOT}/pod0", f"{BE_ROOT}/pod0/c0"], frozenset(plan.cpus)
        )
        assert len(plan.cpus) == 2
        assert plan.reason.endswith(", from none")


class TestReserved:
    def test_cpus_that_are_not_there_are_not_reserved(self):
        view = node(annotations={RESERVATION: {"reservedCPUs": "0,64-127"}})
        assert view.cpu.reserved_millicpu == 1000
        assert plan_suppress(view).be_millicpu == 5200 - 1000

    def test_numbers_go_before_the_quantity_though_none_of_them_is_there(self):
        view = node(annotations={RESERVATION: {"reservedCPUs": "64", "resources": {"cpu": "2"}}})
        assert view.cpu.reserved_millicpu == 0


class TestBound:
    """Pods that kubelet's static policy bound to CPUs, by its own file or by NodeResourceTopology."""

    @pytest.mark.parametrize("by_file", [True, False])
    @pytest.mark.parametrize(
        "status", ['{"numaNodeResources": [{"node": 0}]}', '{"cpuset": "6", "numaNodeResources": []}']
    )
    def test_the_schedulers_word_on_numa_nodes_or_of_a_shared_pool_does_not_hide_kubelets(self, status, by_file):
        # GIVEN a pod that kubelet gave CPUs 0-1 of the NUMA node that the scheduler chose for it
        web = with_annotations(pod("web", uid="web", qos="LS", kube_qos="Guaranteed"), {RESOURCE_STATUS: status})
        word = (
            {"manager": CpuManager("none", {"web": (0, 1)})}
            if by_file
            else {"topology_annotations": {POD_ALLOCATIONS: [{"uid": "web", "cpuset": "0-1"}]}}
        )
        plan = plan_suppress(node(pods=[web], **word))
        assert len(plan.cpus) == 6
        assert not set(plan.cpus) & {0, 1}

    def test_what_kubelet_keeps_from_every_pod_is_not_for_best_effort_ones(self):
        # GIVEN strict-cpu-reservation of CPU 0: it is in no set that kubelet gives to a pod
        db = bound(pod("db", uid="db", qos="LSR", kube_qos="Guaranteed"), "3")
        view = node(pods=[db], manager=CpuManager("static", {"pinned": (1, 2), "db": (3,)}, (4, 5, 6, 7)))
        assert set(plan_suppress(view).cpus) <= {3, 4, 5, 6, 7}
        assert withheld_cpus(view.cpu) == {
            0: "kept back by kubelet",
            **dict.fromkeys((1, 2), "of pods that kubelet bound to them"),
        }

    def test_an_lsr_pod_is_where_the_scheduler_says(self):
        db = bound(pod("db", uid="db", qos="LSR", kube_qos="Guaranteed"), "2-3")
        plan = plan_suppress(node(pods=[db], manager=CpuManager("none", {"db": (0, 1)})))
        assert {0, 1} <= set(plan.cpus)

    def test_who_shares_less_decides_where_two_name_one_cpu(self):
        lse = bound(pod("lse", qos="LSE", kube_qos="Guaranteed"), "0-1")
        lsr = bound(pod("lsr", qos="LSR", kube_qos="Guaranteed"), "1-2")
        for pods in ([lse, lsr], [lsr, lse]):
            assert not set(plan_suppress(node(pods=pods)).cpus) & {0, 1}


class TestIsolated:
    """CPUs 4-7, a NUMA node of their own, are isolated (isolcpus, nohz_full)."""

    TOPOLOGY = replace(machine(nodes=2, cores=4), isolated=(4, 5, 6, 7))

    def test_best_effort_pods_never_get_them(self):
        view = node(self.TOPOLOGY)
        assert be_pools(view.cpu).cpus == {0, 1, 2, 3}
        assert set(plan_suppress(view).cpus) < {0, 1, 2, 3}  # 65 % of these
        assert withheld_cpus(view.cpu) == dict.fromkeys((4, 5, 6, 7), "isolated by the kernel")

    def test_unless_kubelets_shared_set_names_them(self):
        manager = CpuManager("static", {}, (0, 1, 2, 3, 4))
        view = node(self.TOPOLOGY, manager=manager)
        assert 4 in plan_suppress(view).cpus
        assert withheld_cpus(view.cpu) == dict.fromkeys((5, 6, 7), "isolated by the kernel")

    def test_not_those_of_an_lsr_pod_either(self):
        db = bound(pod("db", uid="db", qos="LSR", kube_qos="Guaranteed"), "4-5")
        view = node(self.TOPOLOGY, pods=[db])
        assert not set(plan_suppress(view).cpus) & {4, 5, 6, 7}

    @pytest.mark.parametrize(("isolated_used", "quota_us"), [(msgspec.UNSET, 110_000), (0, 110_000), (1200, 230_000)])
    def test_a_quota_is_of_what_ordinary_tasks_can_use(self, isolated_used, quota_us):
        """65 % of 4 CPUs, less 1.5 of others, of which some ran on isolated CPUs."""
        view = node(
            self.TOPOLOGY,
            strategy={"cpuSuppressPolicy": "cfsQuota"},
            node_used=2500,
            be_used=1000,
            used={"web": 1500},
            isolated_used=isolated_used,
        )
        plan = plan_suppress(view)
        assert (plan.amount.capacity_millicpu, plan.quota_us) == (4000, quota_us)
        assert (" of these on isolated CPUs" in plan.reason) == bool(isolated_used)

    def test_nor_is_it_more_than_these_whatever_the_threshold(self):
        strategy = {"cpuSuppressPolicy": "cfsQuota", "cpuSuppressThresholdPercent": 1000}
        assert plan_suppress(node(self.TOPOLOGY, strategy=strategy)).quota_us == 400_000

    def test_what_best_effort_pods_have_at_most_are_the_others(self):
        assert be_limit_millicpu(node(self.TOPOLOGY).cpu.measured) == 4000
        everywhere = replace(machine(cores=4), isolated=(0, 1, 2, 3))
        assert be_limit_millicpu(node(everywhere).cpu.measured) == 4000

    def test_where_all_are_isolated_no_set_is_written(self):
        plan = plan_suppress(node(replace(machine(cores=4), isolated=(0, 1, 2, 3)), node_used=3900, be_used=3900))
        assert wanted(plan, CPUS) == {}


class TestPercents:
    @pytest.mark.parametrize("policy", ["cpuset", "cfsQuota"])
    @pytest.mark.parametrize(
        ("threshold", "least"), [(0, None), (-5, -5), (0, 0), (100, 100), (65, 80), (10**12, 10**15)]
    )
    def test_whatever_they_are_nothing_is_written_that_a_file_cannot_hold(self, policy, threshold, least):
        percents = {"cpuSuppressThresholdPercent": threshold, "cpuSuppressMinPercent": least}
        view = node(strategy={"cpuSuppressPolicy": policy, **percents}, node_used=8000, used={"web": 8000}, be_used=0)
        plan = plan_suppress(view)
        assert plan.skipped is None
        for write in plan.desired.writes:
            assert broken_rule(write.file, write.value) is None
        if plan.quota_us is not None:
            assert 2000 <= plan.quota_us <= 800_000

    def test_a_minimum_above_the_threshold_is_what_they_get(self):
        percents = {"cpuSuppressThresholdPercent": 65, "cpuSuppressMinPercent": 80}
        plan = plan_suppress(node(strategy=percents, node_used=8000, used={"web": 8000}, be_used=0))
        assert (plan.be_millicpu, len(plan.cpus)) == (6400, 7)


class TestNoRules:
    """No NodeSLO, and no ConfigMap to take its place."""

    def test_before_there_was_one_nothing_is_touched(self):
        kept = adopted(KeptSuppression(replace(USING, is_ruled=True), 0.0), 1.0, 300)
        for state in (SuppressState(), kept):
            assert plan_suppress(replace(node(be_now=range(2)), strategy=None), state).skipped == "no_strategy"

    def test_what_a_predecessor_left_is_kept_for_a_time_and_no_longer(self):
        left = adopted(KeptSuppression(USING, 0.0), 1.0, 300)
        for second, state, is_over in ((299, left, False), (300, left, True), (300, SuppressState(), False)):
            view = node(be_now=range(2), quota_us=5000)
            view = supposed(view, strategy=None, startedNs=view.now_ns - second * NS_PER_S)
            plan = plan_suppress(view, state, SuppressSettings(keep_s=300))
            assert wanted(plan, CPUS).get(BE_ROOT) == (frozenset(range(8)) if is_over else None)
            # what others have set is theirs, without an agent that ever limited a pod
            assert (plan.skipped is None) is is_over

    def test_one_that_was_deleted_holds_no_pod_any_more(self):
        held = plan_suppress(node(node_used=8000, used={"web": 8000}, be_used=0), SuppressState())
        assert held.cpus == (0, 1)
        gone = plan_suppress(replace(node(be_now=range(2)), strategy=None), held.next)
        assert gone.reason == "suppression is off: there is no NodeSLO and no slo-controller-config any more"
        assert wanted(gone, CPUS)[BE_ROOT] == frozenset(range(8))
        # AND once: what others do with the directory afterwards is their affair
        seen = plan_suppress(replace(node(), strategy=None), gone.next)
        assert plan_suppress(replace(node(be_now=range(2)), strategy=None), seen.next).desired.writes == ()


class TestFlips:
    def test_a_gate_that_closes_while_no_cpu_is_free_restores_them_when_there_is_one(self):
        # GIVEN best-effort pods on two CPUs, an LSE pod that has all since, and a gate that is closed then
        everything = bound(pod("db", qos="LSE", kube_qos="Guaranteed"), "0-7")
        off = {"BECPUSuppress": False}
        closed = plan_suppress(node(gates=off, be_now=range(2), pods=[everything]), USING)
        assert wanted(closed, CPUS) == {}
        # WHEN the LSE pod has ended
        freed = plan_suppress(node(gates=off, be_now=range(2)), closed.next)
        assert wanted(freed, CPUS)[BE_ROOT] == frozenset(range(8))

    def test_a_strategy_that_flips_each_second_is_followed_and_shrinks_at_once(self):
        state, now = SuppressState(), range(8)
        for second in range(6):
            enable = bool(second % 2)
            view = node(
                be_now=now, strategy={"enable": enable}, node_used=4000, used={"web": 4000}, be_used=0,
                now_ns=NOW_NS + second * NS_PER_S,
            )  # fmt: skip
            plan = plan_suppress(view, state)
            state, now = plan.next, wanted(plan, CPUS).get(BE_ROOT, frozenset(now))
            assert len(now) == (2 if enable else 8)


class TestMemoryHoldOfOtherPolicies:
    """A set has two CPUs at least, and idle tasks have all that no other task wants: there the hold is a quota."""

    HELD = SuppressState(cpuset="using", memory_hold=MemoryHold(500, NOW_NS, NOW_NS, 0.2))

    @pytest.mark.parametrize("policy", ["cpuset", "cpuIdle"])
    def test_less_than_two_cpus_are_held_by_time(self, policy):
        settings = SuppressSettings(policy=policy)
        settings = replace(settings, memory_pressure=replace(settings.memory_pressure, is_on=True))
        # without a ledger nothing is judged, and the hold stays
        view = node(pods=[ls_pod("web")], node_used=1000, be_used=1000, period_us=50_000)
        plan = plan_suppress(view, self.HELD, settings)
        assert (plan.policy, plan.quota_us, plan.held_millicpu) == (policy, 25_000, 500)
        assert wanted(plan, QUOTA) == {BE_ROOT: 25_000}
        assert plan.next.quota == "using"
        assert wanted(plan, CPUS if policy == "cpuset" else IDLE)
        # WHEN it ends THEN the quota is lifted
        over = plan_suppress(node(quota_us=25_000), replace(plan.next, memory_hold=None), settings)
        assert wanted(over, QUOTA) == {BE_ROOT: None}
