"""What holds for every node that suppresses, whatever its CPUs, pods and amounts."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from koordebpf.decision.node_plan import OtherDecision
from koordebpf.kernel.cgroup.files import CgroupFile, broken_rule, format_cpu_list
from koordebpf.policy.reconcile import DesiredState, plan_writes, wanted_values
from koordebpf.report.pages.plan import decision_blocks
from koordebpf.state.cpu.measured import CpuTopology
from koordebpf.state.view import NodeView
from koordebpf.strategies.cpu_suppress.choose import be_pools, choose_cpus
from koordebpf.strategies.cpu_suppress.decide import ExplainedSuppression, explained_plan
from koordebpf.strategies.cpu_suppress.plan import plan_suppress
from koordebpf.strategies.cpu_suppress.values import MemoryHold, MemoryPressureSettings, SuppressSettings, SuppressState
from tests.support.values.builders import pod
from tests.support.values.cpu_nodes import (
    BE_ROOT,
    MANAGER_POLICY,
    POD_ALLOCATIONS,
    RESERVATION,
    SYSTEM_QOS,
    be_tree,
    bound,
    node,
    wanted,
)
from tests.support.values.machines import machine, without

USES = ["unknown", "using", "recovered"]


@st.composite
def topologies(draw: st.DrawFn) -> CpuTopology:
    whole = machine(
        sockets=draw(st.sampled_from([1, 2, 3, 8])),
        nodes=draw(st.sampled_from([1, 2])),
        cores=draw(st.integers(1, 6)),
        threads=draw(st.sampled_from([1, 2, 4, 8])),
        numbering=draw(st.sampled_from(["siblings together", "siblings last", "sockets in turn"])),
    )
    stays = draw(st.sampled_from(whole.cpus))
    return without(whole, draw(st.sets(st.sampled_from(whole.cpus), max_size=8)) - {stays})


@st.composite
def nodes(draw: st.DrawFn) -> NodeView:
    topology = draw(topologies())
    some = st.sets(st.sampled_from(topology.cpus), max_size=len(topology.cpus))
    few = st.sets(st.sampled_from(topology.cpus), max_size=max(len(topology.cpus) // 4, 1))
    pods = [
        bound(
            pod(f"p{n}", qos=draw(st.sampled_from(["LSE", "LSR", "LS", "BE", None])), kube_qos="Guaranteed"),
            format_cpu_list(draw(few)),
        )
        for n in range(draw(st.integers(0, 3)))
    ]
    others = draw(st.integers(0, 1200 * len(topology.cpus)))
    held = draw(some)
    inner = draw(st.sets(st.sampled_from(sorted(held)))) if held else set()
    return node(
        topology,
        capacity=str(draw(st.integers(1, 2 * len(topology.cpus)))),  # kubelet counted others, or is made to say others
        parent=draw(st.none() | some.map(held.union)),
        pods=pods,
        be_cgroups=be_tree(held, pods=2, of_containers=inner),
        quota_us=draw(st.none() | st.integers(1000, 10_000_000)),
        period_us=draw(st.sampled_from([10_000, 100_000, 1_000_000])),
        node_used=others + draw(st.integers(0, 3000)),
        be_used=draw(st.none() | st.integers(0, 3000)),
        used={"web": others},
        strategy={
            "enable": draw(st.sampled_from([True, True, True, False])),
            "cpuSuppressPolicy": draw(st.sampled_from(["cpuset", "cfsQuota", "what?"])),
            "cpuSuppressThresholdPercent": draw(st.integers(0, 100)),
            "cpuSuppressMinPercent": draw(st.none() | st.integers(0, 100)),
        },
        annotations={RESERVATION: {"reservedCPUs": format_cpu_list(draw(few))}},
        topology_annotations={
            RESERVATION: {"reservedCPUs": format_cpu_list(draw(few))},
            SYSTEM_QOS: {"cpuset": format_cpu_list(draw(few)), "cpusetExclusive": draw(st.booleans())},
            MANAGER_POLICY: {"policy": draw(st.sampled_from(["none", "static"]))},
            POD_ALLOCATIONS: [{"uid": "pinned", "cpuset": format_cpu_list(draw(few))}],
        },
        gates={"BECPUManager": draw(st.integers(0, 9)) == 0},
    )


states = st.builds(
    SuppressState,
    cpuset=st.sampled_from(USES),
    quota=st.sampled_from(USES),
    idle=st.sampled_from(USES),
    cpuset_grown_ns=st.none() | st.integers(0, 2_000_000_000_000),
    quota_grown_ns=st.none() | st.integers(0, 2_000_000_000_000),
    memory_hold=st.none() | st.builds(MemoryHold, st.integers(100, 5000), st.just(0), st.just(0), st.just(0.2)),
)
policies = st.builds(
    SuppressSettings,
    policy=st.sampled_from([None, None, "cpuset", "cfsQuota", "cpuIdle"]),
    memory_pressure=st.builds(MemoryPressureSettings, is_on=st.booleans()),
)


def not_to_be_used(view: NodeView) -> set[int]:
    """Work out from the objects, not from the pools, which CPUs are for their owners alone."""
    assert view.cpu is not None
    placement = view.cpu.placement
    owned = [owner.cpus for owner in placement.owners if owner.koord_qos == "LSE" or owner.uid == "pinned"]
    return {*placement.reserved_cpus, *placement.system_cpus, *(cpu for cpus in owned for cpu in cpus)}


@given(nodes(), states, policies)
def test_never_fewer_than_two_cpus_nor_those_of_others_nor_under_2000_microseconds(view, state, settings):
    plan = plan_suppress(view, state, settings)
    for cpus in wanted(plan, CgroupFile.CPUSET_CPUS).values():
        assert len(cpus) >= 2
        assert not cpus & not_to_be_used(view)
        assert cpus <= set(view.cpu.measured.topology.cpus)
        assert cpus <= set(view.cpu.measured.be_parent_cpus or cpus)
    for quota in wanted(plan, CgroupFile.CPU_QUOTA).values():
        assert quota is None or quota >= 2000


@given(nodes(), states, policies)
def test_a_parent_has_every_cpu_of_its_children(view, state, settings):
    cpus = wanted(plan_suppress(view, state, settings), CgroupFile.CPUSET_CPUS)
    for path, held in cpus.items():
        above = cpus.get(path.rpartition("/")[0])
        assert above is None or held <= above


@given(nodes(), states, policies)
def test_so_it_is_at_every_moment_of_the_change_and_nothing_is_in_its_way(view, state, settings):
    desired = plan_suppress(view, state, settings).desired
    now = {(each.path, CgroupFile.CPUSET_CPUS): frozenset(each.cpus) for each in view.cpu.measured.be_cgroups}
    if view.cpu.measured.be_parent_cpus:
        now["kubepods", CgroupFile.CPUSET_CPUS] = frozenset(view.cpu.measured.be_parent_cpus)
    plan = plan_writes(now, wanted_values(desired), {"cpuset": 1, "cpu": 1})
    assert plan.blocked == ()
    for write in plan.writes:
        now[write.key] = write.value
        sets = {path: cpus for (path, _), cpus in now.items()}
        assert all(cpus <= sets.get(path.rpartition("/")[0], cpus) for path, cpus in sets.items())
    assert {path: value for (path, _), value in now.items() if path in wanted_cpus(desired)} == wanted_cpus(desired)


def wanted_cpus(desired: DesiredState) -> dict[str, object]:
    return {write.path: write.value for write in desired.writes if write.file is CgroupFile.CPUSET_CPUS}


@given(nodes(), states, policies)
def test_every_value_may_be_written_and_each_file_once(view, state, settings):
    writes = plan_suppress(view, state, settings).desired.writes
    assert [broken_rule(write.file, write.value) for write in writes if broken_rule(write.file, write.value)] == []
    assert len({(write.path, write.file) for write in writes}) == len(writes)
    assert all(write.path == BE_ROOT or write.path.startswith(f"{BE_ROOT}/") for write in writes)


@given(nodes(), states, policies)
def test_no_step_up_is_more_than_a_tenth_and_the_first_answer_is_the_last(view, state, settings):
    plan = plan_suppress(view, state, settings)
    assert plan == plan_suppress(view, state, settings)
    online = len(view.cpu.measured.topology.cpus)
    if plan.cpus is not None and view.cpu.placement.manager_policy == "none":
        now = set(view.cpu.measured.be_cgroups[0].cpus) & set(view.cpu.measured.topology.cpus)
        assert len(plan.cpus) <= max(len(now) + -(-online // 10), 2)
    before = view.cpu.measured.be_quota.quota_us
    if plan.quota_us is not None and before is not None and plan.policy == "cfsQuota":
        assert plan.quota_us <= max(before + online * view.cpu.measured.be_quota.period_us // 10, 2000)


@given(nodes(), states, policies)
def test_a_hold_for_memory_is_kept_to_by_each_policy(view, state, settings):
    plan = plan_suppress(view, state, settings)
    if plan.policy is not None and plan.next.memory_hold is not None:
        quota, capacity = view.cpu.measured.be_quota, view.cpu.capacity_millicpu
        most = plan.next.memory_hold.cap_millicpu + -(-capacity // 1000) * 10  # the bypass: a hundredth of the node
        assert wanted(plan, CgroupFile.CPU_QUOTA)[BE_ROOT] <= max(2000, most * quota.period_us // 1000)


@given(nodes(), states, st.integers(0, 5000))
def test_more_use_by_others_never_gives_best_effort_pods_more(view, state, more):
    amount = plan_suppress(view, state).amount
    if amount is None:
        return
    usage = view.cpu.measured.usage

    def answer(used: int):
        return plan_suppress(
            node(
                view.cpu.measured.topology,
                node_used=used,
                be_used=usage.be_used_millicpu,
                used={"web": used},
                strategy={"cpuSuppressThresholdPercent": view.strategy.cpuSuppressThresholdPercent},
            )
        )

    busy, calm = answer(usage.node_used_millicpu + more), answer(usage.node_used_millicpu)
    assert busy.amount.be_millicpu <= calm.amount.be_millicpu
    assert busy.cpus is None or len(busy.cpus) <= len(calm.cpus)


@given(topologies(), st.integers(0, 600))
def test_the_choice_is_what_was_asked_for_and_spread(topology, count):
    chosen = choose_cpus(topology.online, count)
    assert len(chosen) == len(set(chosen)) == min(count, len(topology.online))
    assert set(chosen) <= set(topology.cpus)
    # Spread: where no core has siblings a turn is one CPU, so no node that has one left is two behind another.
    if len({each.core for each in topology.online}) == len(topology.online):
        nodes_of = {each.cpu: each.numa_node for each in topology.online}
        taken = {numa: sum(nodes_of[cpu] == numa for cpu in chosen) for numa in set(nodes_of.values())}
        with_more = [numa for numa in taken if taken[numa] < list(nodes_of.values()).count(numa)]
        assert all(taken[numa] >= max(taken.values()) - 1 for numa in with_more)


@given(nodes())
def test_the_pools_do_not_overlap(view):
    pools = be_pools(view.cpu)
    assert not {each.cpu for each in pools.lsr} & {each.cpu for each in pools.shared}


@given(nodes(), states, policies)
def test_what_is_explained_is_what_is_wanted_and_reads_back(view, state, settings):
    explained = explained_plan(plan_suppress(view, state, settings), view)
    assert msgspec.json.decode(msgspec.json.encode(explained), type=ExplainedSuppression) == explained
    written = {(each.path, each.file): each.value for each in explained.decision.desired.writes}
    assert {(each.path, each.file): each.wanted for each in explained.differences}.items() <= written.items()
    assert all(each.now != each.wanted for each in explained.differences)
    withheld = {cpu for each in explained.withheld for cpu in each.cpus}
    assert withheld == set(view.cpu.measured.topology.cpus) - be_pools(view.cpu).cpus
    assert withheld >= not_to_be_used(view) & set(view.cpu.measured.topology.cpus)
    shown = OtherDecision("", explained=explained)
    for line in (line for block in decision_blocks("suppress", shown, 10) for line in block):
        assert len(line) <= 80
