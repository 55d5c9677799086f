"""A node over many rounds: others come and go, CPUs and LSE pods too, and the strategy is edited meanwhile."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import example, given
from hypothesis import strategies as st

from koordebpf.kernel.cgroup.files import CgroupFile, format_cpu_list
from koordebpf.state.cpu.measured import CpuTopology
from koordebpf.state.view import NodeView
from koordebpf.strategies.cpu_suppress.choose import be_pools
from koordebpf.strategies.cpu_suppress.plan import SuppressPlan, plan_suppress
from koordebpf.strategies.cpu_suppress.values import SuppressState
from koordebpf.units import NS_PER_MS, NS_PER_S
from tests.support.values.builders import NOW_NS, pod
from tests.support.values.cpu_nodes import BE_ROOT, be_tree, bound, node, wanted
from tests.support.values.machines import machine, without

CPUS, QUOTA = CgroupFile.CPUSET_CPUS, CgroupFile.CPU_QUOTA
MACHINES = [machine(cores=2), machine(cores=4, threads=2), machine(sockets=2, nodes=2, cores=4, threads=2)]
MAX_CPUS = 32


class Moment(NamedTuple):
    after_ms: int
    enable: bool
    policy: str
    threshold: int
    others_percent: int  # of the CPUs
    lse: set[int]
    offline: set[int]


few = st.sets(st.integers(0, MAX_CPUS - 1), max_size=4)
moments = st.builds(
    Moment,
    after_ms=st.sampled_from([30, 500, 1000, 3000]),
    enable=st.sampled_from([True, True, True, False]),
    policy=st.sampled_from(["cpuset", "cpuset", "cfsQuota"]),
    threshold=st.sampled_from([0, 65, 65, 65, 100]),
    others_percent=st.integers(0, 110),
    lse=few,
    offline=few,
)


class Kernel:
    """What a v2 kernel would show of the best-effort directories after each write."""

    def __init__(self, whole: CpuTopology) -> None:
        self.whole = whole
        self.cpus: dict[str, frozenset[int]] = {}
        self.quota_us: int | None = None

    def view(self, moment: Moment, now_ns: int) -> NodeView:
        online = [cpu for cpu in self.whole.cpus if cpu not in moment.offline] or [self.whole.cpus[-1]]
        topology = without(self.whole, set(self.whole.cpus).difference(online))
        others = moment.others_percent * len(online) * 10
        tree = tuple(each.path for each in be_tree(online))
        held = {path: self.cpus.get(path, frozenset()).intersection(online) or frozenset(online) for path in tree}
        lse = bound(pod("lse", qos="LSE", kube_qos="Guaranteed"), format_cpu_list(moment.lse))
        return node(
            topology,
            capacity=str(len(self.whole.online)),
            be_cgroups=be_tree(held[BE_ROOT]),
            parent=online,
            pods=[lse],
            node_used=others,
            used={"web": others},
            be_used=0,
            quota_us=self.quota_us,
            strategy={
                "enable": moment.enable,
                "cpuSuppressPolicy": moment.policy,
                "cpuSuppressThresholdPercent": moment.threshold,
            },
            now_ns=now_ns,
        )

    def write(self, plan: SuppressPlan) -> None:
        self.cpus |= wanted(plan, CPUS)
        self.quota_us = wanted(plan, QUOTA).get(BE_ROOT, self.quota_us)


# Left and taken up again within a tenth of a second.
CPUSET_AGAIN = [
    Moment(30, True, policy, threshold, 0, set(), set())
    for policy, threshold in [
        ("cpuset", 0),
        ("cpuset", 0),
        ("cpuset", 65),
        ("cfsQuota", 0),
        ("cpuset", 0),
        ("cpuset", 65),
    ]
]


@given(st.sampled_from(MACHINES), st.lists(moments, min_size=1, max_size=12))
@example(next(each for each in MACHINES if len(each.cpus) == 8), CPUSET_AGAIN)
def test_every_round_keeps_every_promise(whole, story):
    kernel, state, now_ns = Kernel(whole), SuppressState(), NOW_NS
    grown_ns = -NS_PER_S
    for moment in story:
        now_ns += moment.after_ms * NS_PER_MS
        view = kernel.view(moment, now_ns)
        cpu = view.cpu
        online = set(cpu.measured.topology.cpus)
        before = set(cpu.measured.be_cgroups[0].cpus)
        plan = plan_suppress(view, state)
        assert plan.skipped is None
        for cpus in wanted(plan, CPUS).values():
            assert len(cpus) >= 2
            assert cpus <= online - moment.lse
        for quota_us in wanted(plan, QUOTA).values():
            assert quota_us is None or 2000 <= quota_us <= max(len(online) * 100_000, 2000)
        if plan.cpus is not None:
            # What is left is what they get, at once; growth is a tenth of the CPUs, each second at most.
            assert len(plan.cpus) <= max(2, -(-plan.be_millicpu // 1000))
            assert len(plan.cpus) <= max(2, len(before) + -(-len(online) // 10))
            if len(plan.cpus) > max(len(before), 2):
                assert now_ns - grown_ns >= NS_PER_S
                grown_ns = now_ns
        if plan.policy == "cfsQuota":
            left_us = plan.be_millicpu * 100
            assert plan.quota_us <= max(2000, left_us + len(online) * 1000)  # the bypass: a hundredth of the node
        kernel.write(plan)
        state = plan.next


@given(st.sampled_from(MACHINES), st.lists(moments, max_size=8), moments, st.booleans())
def test_whatever_was_before_nothing_is_held_soon_after_it_is_switched_off(whole, story, last, by_gate):
    kernel, state, now_ns = Kernel(whole), SuppressState(), NOW_NS
    for moment in story:
        now_ns += moment.after_ms * NS_PER_MS
        plan = plan_suppress(kernel.view(moment, now_ns), state)
        kernel.write(plan)
        state = plan.next
    # With the gate closed what was restored once is left to others.
    is_done = by_gate and state.cpuset == "recovered"
    for _ in range(2):
        view = kernel.view(last._replace(enable=False), now_ns)
        if by_gate:
            view.feature_gates["BECPUSuppress"] = False
        plan = plan_suppress(view, state)
        kernel.write(plan)
        state = plan.next
    assert kernel.quota_us is None
    pool = be_pools(view.cpu).cpus
    shown = kernel.view(last, now_ns).cpu.measured.be_cgroups
    if len(pool) >= 2 and not is_done:
        assert all(pool <= set(each.cpus) for each in shown)
