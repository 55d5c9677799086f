"""Suppression as stories: what best-effort pods are left when others work, and when suppression ends."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.state.cpu.measured import BeCgroup, CpuManager, HostApplicationCpu, MissingDirectory, OtherPodsCpu
from koordebpf.strategies.cpu_suppress.plan import plan_suppress
from koordebpf.strategies.cpu_suppress.values import KeptSuppression, SuppressSettings, SuppressState, adopted
from koordebpf.units import NS_PER_MS, NS_PER_S
from tests.support.values.builders import NOW_NS, pod
from tests.support.values.cpu_nodes import (
    BE_ROOT,
    MANAGER_POLICY,
    POD_ALLOCATIONS,
    RESERVATION,
    RESOURCE_STATUS,
    SYSTEM_QOS,
    be_tree,
    bound,
    node,
    wanted,
    with_annotations,
)
from tests.support.values.machines import machine, without

CPUS, QUOTA, IDLE = CgroupFile.CPUSET_CPUS, CgroupFile.CPU_QUOTA, CgroupFile.CPU_IDLE
USING = SuppressState(cpuset="using", quota="recovered")
BY_QUOTA = {"cpuSuppressPolicy": "cfsQuota"}
CPU, CPUSET = MissingDirectory("cpu", "/a"), MissingDirectory("cpuset", "/c")


def lsr(name: str, cpus: str, qos: str = "LSR"):
    return bound(pod(name, qos=qos, kube_qos="Guaranteed", priority=9500), cpus)


class TestAmount:
    def amount(self, **more):
        return plan_suppress(node(**more)).amount

    def test_what_is_left_of_the_threshold(self):
        # GIVEN 8 CPUs, of which LS pods use 2, the system half a one, and best-effort pods 3
        amount = self.amount(node_used=5500, be_used=3000, used={"web": 1500, "db": 500})
        assert (amount.pods_millicpu, amount.system_millicpu, amount.be_millicpu) == (2000, 500, 5200 - 2500)
        assert amount.sentence == (
            "2.7 CPUs for best-effort pods: 65 % of 8 CPUs − 2 CPUs of pods − 0 CPUs of host applications − "
            "0.5 CPUs of the system"
        )

    def test_a_best_effort_pod_without_samples_of_its_own_is_not_the_systems(self):
        # GIVEN one that was born after the last sampling and uses 4 CPUs: only its directory has a rate yet
        assert self.amount(node_used=4000, be_used=4000, be_pods_used={}).be_millicpu == 5200

    def test_without_a_rate_of_the_directory_its_pods_are_added_up(self):
        assert self.amount(node_used=4000, be_used=None, be_pods_used={"a": 3000}).system_millicpu == 1000

    def test_a_pod_that_is_unknown_counts_by_its_place(self):
        amount = self.amount(node_used=3000, be_used=1000, used={"unknown-uid": 2000})
        assert (amount.pods_millicpu, amount.be_millicpu) == (2000, 3200)

    def test_a_pod_without_samples_outside_is_the_systems(self):
        assert self.amount(node_used=3000, be_used=1000).system_millicpu == 2000

    def test_pods_outside_that_are_measured_together(self):
        amount = self.amount(node_used=3000, be_used=1000, others=OtherPodsCpu(1500))
        assert (amount.pods_millicpu, amount.system_millicpu, amount.be_millicpu) == (1500, 500, 3200)
        # A burst counts at once, and does not make the system's share smaller.
        amount = self.amount(node_used=3000, be_used=1000, others=OtherPodsCpu(1500, 2500))
        assert (amount.pods_millicpu, amount.system_millicpu, amount.be_millicpu) == (2500, 500, 2200)

    def test_host_applications(self):
        inside = HostApplicationCpu("yarn", 700, is_best_effort=True)
        outside = HostApplicationCpu("nginx", 300)
        amount = self.amount(node_used=2000, be_used=1500, applications=[inside, outside])
        assert (amount.host_applications_millicpu, amount.system_millicpu) == (300, 200)

    def test_what_is_reserved_for_the_system_counts_though_it_is_idle(self):
        assert self.amount(allocatable={"cpu": "7"}).be_millicpu == 4200
        assert self.amount(annotations={RESERVATION: {"resources": {"cpu": "1500m"}}}).system_millicpu == 1500
        by_number = {"resources": {"cpu": "4"}, "reservedCPUs": "0-1"}
        assert self.amount(annotations={RESERVATION: by_number}).system_millicpu == 2000
        # the larger of both, and usage above it counts whole
        both = {"allocatable": {"cpu": "7"}, "annotations": {RESERVATION: {"resources": {"cpu": "2"}}}}
        assert self.amount(**both).system_millicpu == 2000
        assert self.amount(node_used=3000, be_used=0, **both).system_millicpu == 3000

    def test_below_nothing_unless_a_minimum_is_set(self):
        busy = {"node_used": 8000, "be_used": 0, "used": {"web": 8000}}
        assert self.amount(**busy).be_millicpu == -2800
        amount = self.amount(**busy, strategy={"cpuSuppressMinPercent": 10})
        assert (amount.be_millicpu, amount.is_minimum) == (800, True)

    def test_samples_that_do_not_add_up_are_no_system_usage(self):
        assert self.amount(node_used=1000, be_used=900, used={"web": 300}).system_millicpu == 0

    def test_a_burst_counts_at_once_and_is_no_other_pods_usage(self):
        # GIVEN web used 1 CPU over the last second and uses 4 now
        view = node(node_used=2500, be_used=1000, used={"web": 1000})
        usage = view.cpu.measured.usage
        (web,) = usage.pods
        for burst, claimed in ((None, 1000), (4000, 4000), (200, 1000)):
            pods = (replace(web, burst_millicpu=burst),)
            measured = replace(view.cpu.measured, usage=replace(usage, pods=pods))
            amount = plan_suppress(replace(view, cpu=replace(view.cpu, measured=measured))).amount
            assert (amount.pods_millicpu, amount.system_millicpu) == (claimed, 500)


class TestCpuset:
    def test_a_burst_of_others_takes_cpus_at_once_on_every_level(self):
        # GIVEN best-effort pods on all 8 CPUs WHEN others use 3 THEN 2.2 CPUs are left: 3 CPUs, everywhere
        plan = plan_suppress(node(node_used=5000, be_used=2000, used={"web": 3000}), USING)
        assert plan.cpus == (0, 1, 2)
        assert wanted(plan, CPUS) == dict.fromkeys(
            [BE_ROOT, f"{BE_ROOT}/pod0", f"{BE_ROOT}/pod0/c0"], frozenset({0, 1, 2})
        )
        assert plan.next.cpuset == "using"
        assert plan.reason.endswith("CPUs 0-2, from 0-7")

    def test_never_fewer_than_two(self):
        plan = plan_suppress(node(node_used=8000, be_used=0, used={"web": 8000}), USING)
        assert plan.cpus == (0, 1)
        assert (plan.be_millicpu, plan.held_millicpu) == (-2800, 2000)

    def test_growth_is_a_tenth_of_the_node_each_second(self):
        topology = machine(cores=32, threads=2)
        state = USING
        sizes, now = [], range(2)
        for tick in range(24):  # each 250 ms
            plan = plan_suppress(
                node(topology, be_now=now, now_ns=NOW_NS + tick * 250 * NS_PER_MS), state
            )  # fmt: skip
            state, now = plan.next, plan.cpus
            sizes.append(len(now))
        assert sizes == [9] * 4 + [16] * 4 + [23] * 4 + [30] * 4 + [37] * 4 + [41] * 4  # 41.6 are left, less 1 %

    def test_an_amount_that_swings_about_a_whole_cpu_changes_nothing(self):
        now, sets = range(4), set()
        for other in (1200, 1190, 1205, 1195, 1210, 1130):
            plan = plan_suppress(node(be_now=now, node_used=other, used={"web": other}, be_used=0), USING)
            now = plan.cpus
            sets.add(plan.cpus)
        assert sets == {(0, 1, 2, 3)}

    def test_what_the_others_have_for_themselves_is_never_chosen(self):
        ended = pod("gone", qos="LSE", kube_qos="Guaranteed", phase="Succeeded")
        view = node(
            machine(cores=16),
            pods=[lsr("db", "0-1", "LSE"), bound(ended, "4"), lsr("cache", "2-3")],
            annotations={RESERVATION: {"reservedCPUs": "15"}},
            topology_annotations={
                RESERVATION: {"reservedCPUs": "14"},
                SYSTEM_QOS: {"cpuset": "12-13"},
                POD_ALLOCATIONS: [
                    {"namespace": "x", "name": "pinned", "uid": "p", "cpuset": "5", "managedByKubelet": True}
                ],
            },
        )
        # 65 % of 16 − 2 reserved = 8.4: nine CPUs, and no more are left of the pools
        assert plan_suppress(view).cpus == (2, 3, 4, 6, 7, 8, 9, 10, 11)

    def test_cpus_of_the_system_class_that_it_shares_may_be_used(self):
        shared = {SYSTEM_QOS: {"cpuset": "0-5", "cpusetExclusive": False}}
        assert set(plan_suppress(node(topology_annotations=shared)).cpus) & set(range(6))

    def test_an_unreadable_annotation_takes_no_cpu_and_is_reported(self):
        db = with_annotations(pod("db", qos="LSE", kube_qos="Guaranteed"), {RESOURCE_STATUS: '{"cpuset": "0-x"}'})
        view = node(pods=[db], topology_annotations={SYSTEM_QOS: {"cpuset": 7}})
        assert len(plan_suppress(view).cpus) == 6
        system, of_pod = view.cpu.placement.problems
        assert system.startswith(f"annotation {SYSTEM_QOS}: ")
        assert of_pod.startswith("pod spark/db: annotation scheduling.koordinator.sh/resource-status: '0-x': ")

    @pytest.mark.parametrize("amount", ["two", "-1", ""])
    def test_a_reservation_that_is_no_quantity_is_reported_and_ends_nothing(self, amount):
        view = node(annotations={RESERVATION: {"resources": {"cpu": amount}}})
        assert view.cpu.reserved_millicpu == 0
        assert plan_suppress(view).skipped is None
        (problem,) = view.cpu.placement.problems
        assert problem.startswith(f"annotation {RESERVATION} resources.cpu: {amount!r}: must")

    def test_who_requests_one_cpu_has_not_all_of_them_by_annotation(self):
        # GIVEN a tenant that writes the scheduler's annotation itself
        its = with_annotations(pod("db", qos="LSE", priority=9500), {RESOURCE_STATUS: '{"cpuset": "0-7"}'})
        view = node(pods=[its])
        assert plan_suppress(view).cpus == plan_suppress(node()).cpus
        assert view.cpu.placement.owners == ()
        (problem,) = view.cpu.placement.problems
        assert problem.endswith("binds the pod to 8 CPUs, and it requests 0: it is passed over")

    def test_lsr_cpus_are_taken_in_proportion(self):
        # 4 of 8 CPUs are LSR's; 65 % of 8 are 5.2, so 6: 3 of each
        plan = plan_suppress(node(pods=[lsr("cache", "0-3")]))
        assert (len(set(plan.cpus) & {0, 1, 2, 3}), len(set(plan.cpus) & {4, 5, 6, 7})) == (3, 3)

    def test_everything_is_taken(self):
        # Koordinator divides by zero here
        plan = plan_suppress(node(pods=[lsr("db", "0-7", "LSE")]))
        assert (plan.policy, plan.quota_us, plan.cpus) == ("cfsQuota", 520_000, None)
        assert wanted(plan, CPUS) == {}
        assert "fewer than two CPUs are free to choose from" in plan.reason

    def test_a_single_cpu_is_held_by_quota(self):
        plan = plan_suppress(node(cpus=1, node_used=600, be_used=0, used={"web": 600}))
        assert (plan.policy, plan.quota_us) == ("cfsQuota", 5000)
        assert wanted(plan, CPUS) == {}

    def test_a_cpu_that_is_unplugged(self):
        topology = without(machine(cores=4, threads=2), [1, 5])
        plan = plan_suppress(node(topology, be_now=range(8)))
        assert set(plan.cpus) <= {0, 2, 3, 4, 6, 7}
        assert plan.reason.endswith(", from 0,2-4,6-7")

    def test_only_what_the_directory_above_has(self):
        plan = plan_suppress(node(parent=[0, 1, 2, 3], be_now=[0, 1, 2, 3]))
        assert plan.cpus == (0, 1, 2, 3)
        assert len(plan_suppress(node(parent=[])).cpus) == 6  # v2: empty is "as above"

    def test_with_kubelets_static_policy_only_containers_are_held(self):
        static = {MANAGER_POLICY: {"policy": "static", "options": {}}}
        tree = be_tree(range(8), of_containers=range(4))
        plan = plan_suppress(
            node(be_cgroups=tree, topology_annotations=static, node_used=3000, be_used=0, used={"web": 3000})
        )
        assert wanted(plan, CPUS) == {
            BE_ROOT: frozenset(range(8)),
            f"{BE_ROOT}/pod0": frozenset(range(8)),
            f"{BE_ROOT}/pod0/c0": frozenset({0, 1, 2}),
        }
        # growth counts from the containers' set: Koordinator's counts from the directory's, and is not limited
        assert len(plan_suppress(node(be_cgroups=tree, topology_annotations=static)).cpus) == 5
        # and from the smallest: one that kubelet has started since has every CPU
        fresh = (*tree, BeCgroup(f"{BE_ROOT}/pod0/fresh", "container", "be-0", tuple(range(8))))
        assert len(plan_suppress(node(be_cgroups=fresh, topology_annotations=static)).cpus) == 5

    def test_with_kubelets_static_policy_a_small_set_of_a_pod_is_no_containers(self):
        static = {MANAGER_POLICY: {"policy": "static", "options": {}}}
        tree = (*be_tree(range(8), of_containers=range(4)), BeCgroup(f"{BE_ROOT}/pod9", "pod", "be-9", (0,)))
        assert plan_suppress(node(be_cgroups=tree, topology_annotations=static)).reason.endswith(", from 0-3")

    def test_kubelets_own_word_counts_without_any_object(self):
        view = node(manager=CpuManager("static", {"pinned": (0, 1)}))
        plan = plan_suppress(view)
        assert wanted(plan, CPUS)[BE_ROOT] == frozenset(range(2, 8))  # above the containers everything that is free
        assert set(plan.cpus) == {2, 3, 4, 5, 6, 7}
        assert view.cpu.placement.manager_policy == "static"

    def test_an_unread_cpuset_changes_nothing(self):
        plan = plan_suppress(node(be_cgroups=be_tree(None)), USING)
        assert (plan.skipped, plan.desired.writes, plan.next) == ("no_cpuset", (), USING)

    def test_the_quota_of_another_policy_is_lifted_once(self):
        first = plan_suppress(node(quota_us=50_000), SuppressState(quota="using"))
        assert wanted(first, QUOTA) == {BE_ROOT: None}
        again = plan_suppress(node(quota_us=50_000), first.next)
        assert wanted(again, QUOTA) == {BE_ROOT: None}  # the write failed, or it was a dry run
        seen = plan_suppress(node(), again.next)
        assert wanted(plan_suppress(node(quota_us=70_000), seen.next), QUOTA) == {}  # this one is another's


class TestQuota:
    def quota(self, *, now: int | None, left: int, state: SuppressState | None = None, **more):
        view = node(
            capacity="10", cpus=10, quota_us=now, strategy={**BY_QUOTA, "cpuSuppressThresholdPercent": 100},
            node_used=10_000 - left, used={"web": 10_000 - left}, be_used=0, **more,
        )  # fmt: skip
        return plan_suppress(view, state or SuppressState(quota="using"))

    def test_the_first_quota_is_written_on_a_large_node_too(self):
        # Less than a hundredth of its 128 CPUs, which is too small a change of a quota that is there.
        view = node(capacity="128", cpus=128, node_used=82_100, used={"web": 82_100}, strategy=BY_QUOTA)
        plan = plan_suppress(view, SuppressState(quota="using"))
        assert plan.quota_us == 110_000

    def test_the_first_quota_is_written_whole_and_less_at_once(self):
        assert self.quota(now=None, left=4000).quota_us == 400_000
        assert self.quota(now=900_000, left=4000).quota_us == 400_000

    def test_never_under_2000_microseconds(self):
        assert self.quota(now=400_000, left=0).quota_us == 2000
        assert self.quota(now=9000, left=0).quota_us == 2000  # though it is less than a hundredth of the node
        assert self.quota(now=1000, left=5).quota_us == 2000

    def test_growth_is_a_tenth_of_the_node_each_second(self):
        plan = self.quota(now=100_000, left=9000)
        assert (plan.quota_us, plan.next.quota_grown_ns) == (200_000, NOW_NS)
        assert self.quota(now=200_000, left=9000, state=plan.next, now_ns=NOW_NS + NS_PER_S - 1).quota_us == 200_000
        assert self.quota(now=200_000, left=9000, state=plan.next, now_ns=NOW_NS + NS_PER_S).quota_us == 300_000

    @pytest.mark.parametrize("left", [3901, 4000, 4099])
    def test_a_change_below_a_hundredth_of_the_node_is_none(self, left):
        assert self.quota(now=400_000, left=left).quota_us == 400_000

    def test_a_hundredth_of_the_node_is_a_change(self):
        assert self.quota(now=400_000, left=4100).quota_us == 410_000
        assert self.quota(now=400_000, left=3900).quota_us == 390_000

    def test_another_period_is_kept(self):
        assert self.quota(now=None, left=4000, period_us=50_000).quota_us == 200_000

    def test_best_effort_pods_get_all_cpus_that_are_not_somebodys_own(self):
        plan = self.quota(now=None, left=4000, pods=[lsr("db", "0-1", "LSE")])
        assert wanted(plan, CPUS)[BE_ROOT] == frozenset(range(2, 10))
        assert (plan.next.cpuset, plan.next.quota) == ("recovered", "using")

    def test_without_a_cpu_controller_nothing_is_decided(self):
        assert plan_suppress(node(strategy=BY_QUOTA, has_quota=False)).skipped == "no_quota"


class TestIdle:
    SETTINGS = SuppressSettings(policy="cpuIdle")

    def test_off_unless_asked_for(self):
        assert wanted(plan_suppress(node()), IDLE) == {}

    def test_best_effort_pods_run_when_no_other_pod_wants_to(self):
        plan = plan_suppress(node(), SuppressState(cpuset="using", quota="using"), self.SETTINGS)
        assert wanted(plan, IDLE) == {BE_ROOT: 1}
        assert wanted(plan, QUOTA) == {BE_ROOT: None}
        assert wanted(plan, CPUS)[BE_ROOT] == frozenset(range(8))
        back = plan_suppress(node(idle=1), plan.next)
        assert wanted(back, IDLE) == {BE_ROOT: 0}
        seen = plan_suppress(node(), back.next)
        assert wanted(plan_suppress(node(idle=1), seen.next), IDLE) == {}

    def test_before_linux_5_15_they_have_the_least_weight(self):
        plan = plan_suppress(node(idle=None), SuppressState(), self.SETTINGS)
        assert wanted(plan, CgroupFile.CPU_SHARES) == {BE_ROOT: 2}
        assert wanted(plan, IDLE) == {}
        assert wanted(plan_suppress(node(idle=None), plan.next), IDLE) == {}


class TestOff:
    def test_a_disabled_strategy_gives_everything_back(self):
        off = {"enable": False}
        first = plan_suppress(node(strategy=off, be_now=range(2), quota_us=5000), SuppressState("using", "using"))
        assert wanted(first, CPUS)[f"{BE_ROOT}/pod0/c0"] == frozenset(range(8))
        assert wanted(first, QUOTA) == {BE_ROOT: None}
        assert first.next == SuppressState(cpuset="using", quota="using", idle="recovered", is_ruled=True)
        assert plan_suppress(node(strategy=off), first.next).next == SuppressState(*["recovered"] * 3, is_ruled=True)

    def test_while_it_is_disabled_lse_pods_keep_their_cpus_and_quotas_are_others_affair(self):
        state = SuppressState(cpuset="recovered", quota="recovered")
        plan = plan_suppress(node(strategy={"enable": False}, quota_us=5000, pods=[lsr("db", "0-1", "LSE")]), state)
        assert wanted(plan, CPUS)[BE_ROOT] == frozenset(range(2, 8))
        assert wanted(plan, QUOTA) == {}

    def test_a_gate_that_is_off_undoes_what_was_done_once(self):
        off = {"BECPUSuppress": False}
        plan = plan_suppress(node(gates=off, be_now=range(2)), USING)
        assert wanted(plan, CPUS)[BE_ROOT] == frozenset(range(8))
        seen = plan_suppress(node(gates=off), plan.next)
        assert plan_suppress(node(gates=off, be_now=range(2)), seen.next).desired.writes == ()

    def test_after_a_start_the_first_recovery_is_whole(self):
        plan = plan_suppress(node(strategy={"enable": False}, quota_us=5000, be_now=range(2)))
        assert wanted(plan, QUOTA) == {BE_ROOT: None}
        assert wanted(plan, CPUS)[BE_ROOT] == frozenset(range(8))

    @pytest.mark.parametrize("strategy", [{"enable": False}, BY_QUOTA])
    def test_sets_that_were_not_held_are_not_written(self, strategy):
        assert wanted(plan_suppress(node(strategy=strategy)), CPUS) == {}

    def test_directories_without_a_cpuset_controller_are_not_written(self):
        tree = (*be_tree(range(8), pods=0), *be_tree(None)[1:])
        assert wanted(plan_suppress(node(strategy=BY_QUOTA, be_cgroups=tree)), CPUS) == {}

    def test_what_belongs_to_others_is_not_given(self):
        view = node(
            strategy={"enable": False}, pods=[lsr("db", "0-1", "LSE")], annotations={RESERVATION: {"reservedCPUs": "7"}}
        )
        assert wanted(plan_suppress(view, USING), CPUS)[BE_ROOT] == frozenset(range(2, 7))

    def test_another_agent_places_best_effort_pods(self):
        pods = [bound(pod("be", uid="be-0"), "3")]
        plan = plan_suppress(node(gates={"BECPUManager": True}, pods=pods, be_cgroups=be_tree(range(2), pods=2)), USING)
        assert wanted(plan, CPUS) == dict.fromkeys(
            [BE_ROOT, f"{BE_ROOT}/pod0", f"{BE_ROOT}/pod1", f"{BE_ROOT}/pod1/c0"], frozenset(range(8))
        )

    @pytest.mark.parametrize(
        ("view", "word"),
        [
            (node(node_used=None), "first_sample"),
            (node(be_cgroups=()), "no_best_effort"),
            (replace(node(), strategy=None), "no_strategy"),
            (replace(node(), cpu=None), "unmeasured"),
            (node(capacity="0"), "invalid_config"),
        ],
    )
    def test_what_is_not_known_changes_nothing(self, view, word):
        plan = plan_suppress(view, USING)
        assert (plan.skipped, plan.desired.writes, plan.next) == (word, (), USING)

    @pytest.mark.parametrize(
        ("view", "word", "hierarchies", "paths"),
        [
            (node(be_cgroups=(), be_missing=(CPUSET,)), "no_best_effort", "cpuset hierarchy", "no /c"),
            (node(strategy=BY_QUOTA, has_quota=False, be_missing=(CPU,)), "no_quota", "cpu hierarchy", "no /a"),
            (
                node(be_cgroups=(), be_missing=(CPU, CPUSET)),
                "no_best_effort",
                "cpu and cpuset hierarchies",
                "no /a and no /c",
            ),
        ],
    )
    def test_hierarchies_without_the_best_effort_directory_are_named(self, view, word, hierarchies, paths):
        plan = plan_suppress(view)
        assert plan.skipped == word
        assert plan.reason.endswith(
            f"the best-effort directory is not in the {hierarchies} of cgroup v1: there is {paths}. "
            "Restart the kubelet, which makes it"
        )


class TestExit:
    def test_what_is_kept_is_a_successors_for_a_time(self):
        settings = SuppressSettings(at_exit="keep", keep_s=300)
        grown = replace(USING, cpuset_grown_ns=5)
        kept = KeptSuppression(grown, left_s=1000.0)
        assert adopted(kept, 1300.0, settings.keep_s) == USING
        assert adopted(kept, 1300.5, settings.keep_s) == SuppressState()
        assert adopted(kept, 999.0, settings.keep_s) == SuppressState()
        assert adopted(None, 1000.0, settings.keep_s) == SuppressState()

    def test_a_successor_that_came_too_late_gives_everything_back(self):
        state = adopted(KeptSuppression(USING, 0.0), 301.0, 300)
        plan = plan_suppress(node(strategy={"enable": False}, be_now=range(2)), state)
        assert wanted(plan, CPUS)[BE_ROOT] == frozenset(range(8))
