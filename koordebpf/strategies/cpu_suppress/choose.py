"""The values as they would be without suppression."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import msgspec
from msgspec.structs import replace

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.policy.reconcile import CgroupWrite, DesiredState
from koordebpf.slo.pods.cpu_placement import BoundPod, set_apart, withheld_from_be
from koordebpf.state.cpu.measured import BeCgroup, BeQuota, Cpu, CpuUsage, CpuView, OtherPodsCpu, PodCpu
from koordebpf.state.cpu.view import ordinary_millicpu
from koordebpf.strategies.cpu_suppress.values import SuppressState, Use
from koordebpf.units import format_millicpu

MIN_QUOTA_US = 2000  # Why: koordlet's least; the kernel's is 1000
_GROWTH_RATIO = 0.1  # of the node's capacity in one step, koordlet's
_BYPASS_RATIO = 0.01  # smaller changes are left, koordlet's
MIN_CPUS = 2  # Why: koordlet's least; with one CPU a pod that waits for its own other thread stands still
_STEPS = 10  # Why: koordlet's growth is a tenth of the node's CPUs at a time, rounded up


class BeAmount(msgspec.Struct, frozen=True):
    """What best-effort pods may use, and what it is made of. Millicpu.

    `be_millicpu` is negative where the others use more than the threshold allows and no minimum is set.
    """

    be_millicpu: int
    capacity_millicpu: int
    threshold_percent: int
    pods_millicpu: int  # used by pods that are not best-effort, bursts counted at once
    host_applications_millicpu: int  # the same of host applications
    system_millicpu: int  # everything else that runs, or what is reserved for it if that is more
    is_minimum: bool = False  # cpuSuppressMinPercent decided
    isolated_millicpu: int | msgspec.UnsetType = msgspec.UNSET  # of these on CPUs that are no part of the capacity

    @property
    def sentence(self) -> str:
        """The sum, for people."""
        isolated = self.isolated_millicpu
        on_isolated = f" + {format_millicpu(isolated)} of these on isolated CPUs" if isolated else ""
        minimum = ", raised to the minimum" if self.is_minimum else ""
        return (
            f"{format_millicpu(self.be_millicpu)} for best-effort pods: {self.threshold_percent} % of "
            f"{format_millicpu(self.capacity_millicpu)} − {format_millicpu(self.pods_millicpu)} of pods − "
            f"{format_millicpu(self.host_applications_millicpu)} of host applications − "
            f"{format_millicpu(self.system_millicpu)} of the system{on_isolated}{minimum}"
        )


def be_amount(cpu: CpuView, usage: CpuUsage, threshold_percent: int, min_percent: int | None) -> BeAmount:
    """Return what the others leave of the threshold.

    Only what runs in the best-effort directory counts as best-effort: that is what suppression holds, whatever the
    labels say. Its usage is read from the directory itself, so that a pod without samples of its own is never taken
    for the system's. README.md has who counts as what, and where Koordinator counts otherwise.

    BE = capacity · threshold − pods − host applications − max(node − pods − host applications − best-effort, reserved)

    A burst takes CPU from best-effort pods at once, where it was measured; it does not make the system's share smaller.
    CPUs that the kernel keeps from ordinary tasks are no part of the capacity, and what is used of them is not
    subtracted: best-effort pods could not have it.

    Source:  koordinator pkg/koordlet/qosmanager/helpers/calculator.go.
    """
    others: list[PodCpu | OtherPodsCpu] = [pod for pod in usage.pods if not pod.is_best_effort]
    if usage.other_pods is not None:
        others.append(usage.other_pods)
    outside = [each for each in usage.host_applications if not each.is_best_effort]
    best_effort = usage.be_used_millicpu
    if best_effort is None:
        best_effort = sum(pod.used_millicpu for pod in usage.pods if pod.is_best_effort)
    known = sum(pod.used_millicpu for pod in others) + sum(each.used_millicpu for each in outside) + best_effort
    system = max(usage.node_used_millicpu - known, cpu.reserved_millicpu, 0)
    pods = sum(pod.claimed_millicpu for pod in others)
    applications = sum(each.claimed_millicpu for each in outside)
    capacity = ordinary_millicpu(cpu)
    of_others = pods + applications + system
    isolated = min(usage.isolated_used_millicpu or 0, of_others)
    left = capacity * threshold_percent // 100 - (of_others - isolated)
    minimum = capacity * min_percent // 100 if min_percent is not None else None
    is_minimum = minimum is not None and minimum > left
    return BeAmount(
        be_millicpu=max(left, minimum) if minimum is not None else left,
        capacity_millicpu=capacity,
        threshold_percent=threshold_percent,
        pods_millicpu=pods,
        host_applications_millicpu=applications,
        system_millicpu=system,
        is_minimum=is_minimum,
        isolated_millicpu=isolated or msgspec.UNSET,
    )


class CpuPools(msgspec.Struct, frozen=True):
    """The online CPUs that best-effort pods may use: `lsr` belong to LSR pods, `shared` to no pod alone."""

    lsr: tuple[Cpu, ...]
    shared: tuple[Cpu, ...]

    @property
    def cpus(self) -> frozenset[int]:
        """The numbers of all of them."""
        return frozenset(each.cpu for each in (*self.lsr, *self.shared))


def be_pools(cpu: CpuView) -> CpuPools:
    """Return the pools.

    Where two pods name the same CPU, the one that shares less decides; in Koordinator the later one does.

    Source:  koordinator pkg/koordlet/qosmanager/plugins/cpusuppress/cpu_suppress.go.
    """
    withheld = withheld_cpus(cpu)
    lsr = {each for owner in cpu.placement.owners if owner.koord_qos == "LSR" for each in owner.cpus}
    free = [each for each in cpu.measured.topology.online if each.cpu not in withheld]
    return CpuPools(
        lsr=tuple(each for each in free if each.cpu in lsr), shared=tuple(each for each in free if each.cpu not in lsr)
    )


def withheld_cpus(cpu: CpuView) -> dict[int, str]:
    """Return the online CPUs that best-effort pods never get, each with whose it is or why."""
    placement, parent = cpu.placement, cpu.measured.be_parent_cpus
    bound = (BoundPod(owner.koord_qos, owner.cpus, owner.by_kubelet) for owner in placement.owners)
    online, manager = cpu.measured.topology.cpus, cpu.measured.manager
    isolated = set_apart(cpu.measured.topology.isolated, manager.shared if manager is not None else ())
    withheld = withheld_from_be(bound, placement.reserved_cpus, placement.system_cpus, isolated)
    if manager is not None and manager.shared:
        given = {*manager.shared, *(each for cpus in manager.pinned.values() for each in cpus)}
        withheld |= dict.fromkeys(set(online).difference(given, isolated), "kept back by kubelet")
    if parent:  # v2: empty is "as above"
        # The kernel would refuse them.
        withheld |= dict.fromkeys(set(online).difference(parent), "not of the directory above theirs")
    return {each: withheld[each] for each in online if each in withheld}


class QuotaChoice(msgspec.Struct, frozen=True):
    """The quota that the best-effort directory is to have, and whether it is more than it has now. Microseconds."""

    quota_us: int
    is_growth: bool


def choose_quota(now: BeQuota, be_millicpu: int, capacity_millicpu: int, *, may_grow: bool) -> QuotaChoice:
    """Return the quota for an amount, in the period that is set; Koordinator takes 100 ms for granted.

    Never under 2000 µs, nor more than the node has. Less at once; more only where `may_grow`, and at most a tenth of
    the node at a time. What changes by less than a hundredth of the node stays as it is. Without a quota now, the first
    one is written whole.

    Source:  koordinator pkg/koordlet/qosmanager/plugins/cpusuppress/cpu_suppress.go, adjustByCfsQuota.
    """
    cores = -(-capacity_millicpu // 1000)  # Quantity.Value() rounds up to whole CPUs
    whole_us = cores * now.period_us
    wanted = max(min(be_millicpu * now.period_us // 1000, whole_us), MIN_QUOTA_US)
    if now.quota_us is None:
        return QuotaChoice(wanted, is_growth=False)
    if abs(wanted - now.quota_us) < whole_us * _BYPASS_RATIO and wanted != MIN_QUOTA_US:
        return QuotaChoice(max(now.quota_us, MIN_QUOTA_US), is_growth=False)
    if wanted > now.quota_us:
        if not may_grow:
            return QuotaChoice(max(now.quota_us, MIN_QUOTA_US), is_growth=False)
        wanted = min(wanted, now.quota_us + int(whole_us * _GROWTH_RATIO))
        return QuotaChoice(max(wanted, MIN_QUOTA_US), is_growth=True)
    return QuotaChoice(wanted, is_growth=False)


def quota_write(path: str, quota_us: int | None) -> CgroupWrite:
    """Return the value for the best-effort directory; None: no limit. Its burst is left alone."""
    return CgroupWrite(path, CgroupFile.CPU_QUOTA, quota_us)


def choose_cpus(pool: Iterable[Cpu], count: int) -> tuple[int, ...]:
    """Return `count` CPUs in the order of choice; all of them where the pool has no more.

    NUMA nodes and sockets take turns, the largest first. While more than one CPU is wanted a turn gives two siblings of
    one core, then single CPUs. Koordinator tells nodes and sockets apart by a number that can be the same for two of
    them, and gives nothing where the pool has fewer than `count`.

    Source:  koordinator pkg/koordlet/qosmanager/plugins/cpusuppress/cpu_suppress.go, calculateBESuppressCPUSetPolicy.
    Cost:    0.4 ms for 512 CPUs.
    """
    buckets: dict[tuple[int, int], list[Cpu]] = {}
    for each in sorted(pool, key=lambda cpu: (cpu.core, cpu.cpu)):
        buckets.setdefault((each.socket, each.numa_node), []).append(each)
    order = sorted(buckets.values(), key=lambda bucket: (-len(bucket), bucket[0].cpu))
    pairs = [deque(_pairs(bucket)) for bucket in order]
    chosen: list[int] = []
    used: set[int] = set()
    turn = 0
    # As there, the end of the pairs is seen at the first bucket alone, where single CPUs begin then.
    while count - len(chosen) > 1 and (turn or any(pairs)):
        pair = pairs[turn].popleft() if pairs[turn] else ()
        chosen += pair
        used.update(pair)
        turn = (turn + 1) % len(order)
    singles = [deque(each.cpu for each in bucket if each.cpu not in used) for bucket in order]
    while len(chosen) < count and any(singles):
        if singles[turn]:
            chosen.append(singles[turn].popleft())
        turn = (turn + 1) % len(order)
    return tuple(chosen)


def _pairs(bucket: list[Cpu]) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    index = 0
    while index + 1 < len(bucket):
        first, second = bucket[index], bucket[index + 1]
        if first.core == second.core:
            pairs.append((first.cpu, second.cpu))
            index += 1
        index += 1
    return pairs


class CpusetChoice(msgspec.Struct, frozen=True):
    """The CPUs that best-effort pods are to have, and whether these are more than they have now."""

    cpus: frozenset[int]
    is_growth: bool


def choose_cpuset(
    now: frozenset[int], pools: CpuPools, online: int, be_millicpu: int, *, may_grow: bool, hysteresis_millicpu: int
) -> CpusetChoice | None:
    """Return the CPUs for an amount; None where the pools have fewer than two: such a node can only be held by quota.

    As many CPUs as the amount begins, never fewer than two. Fewer at once; more only where the amount reaches
    `hysteresis_millicpu` into the next CPU and `may_grow`, and at most a tenth of the node's CPUs at a time. LSR pods'
    CPUs are taken in proportion.

    Args:
        now: the CPUs that best-effort pods can use now.
        pools: those that they may use.
        online: how many CPUs the node has.
        be_millicpu: the amount.
        may_grow: whether the last growth is long enough ago.
        hysteresis_millicpu: see above.
    Source:  koordinator pkg/koordlet/qosmanager/plugins/cpusuppress/cpu_suppress.go, adjustByCPUSet.
    Cost:    0.4 ms on 512 CPUs.
    """
    lsr, shared = len(pools.lsr), len(pools.shared)
    if lsr + shared < MIN_CPUS:
        return None
    count = _rounded_up(be_millicpu, 1000)
    if count > len(now):
        wanted = min(_rounded_up(be_millicpu - hysteresis_millicpu, 1000), len(now) + _rounded_up(online, _STEPS))
        count = max(wanted, len(now)) if may_grow else len(now)
    count = min(max(count, MIN_CPUS), lsr + shared)
    of_lsr = count * lsr // (lsr + shared)
    cpus = frozenset((*choose_cpus(pools.lsr, of_lsr), *choose_cpus(pools.shared, count - of_lsr)))
    return CpusetChoice(cpus, is_growth=len(cpus) > len(now))


def cpus_in_use(cpu: CpuView) -> frozenset[int] | None:
    """Return the CPUs that best-effort pods can use now, None where none of their directories could be read.

    Where kubelet places containers itself it is the smallest set of a container, since only these are held; else that
    of the best-effort directory. That is empty on v1 after its last CPU went offline: the kernel moved its tasks to the
    directory above, and they come no more; who is started then is held. An empty container is one that is being made.
    """
    be_cgroups = cpu.measured.be_cgroups
    now = next((each.cpus for each in be_cgroups if each.level == "root" and each.cpus is not None), None)
    if cpu.placement.manager_policy == "static":
        now = min((each.cpus for each in be_cgroups if each.level == "container" and each.cpus), key=len, default=now)
    return None if now is None else frozenset(cpu.measured.topology.cpus).intersection(now)


def cpuset_writes(cpu: CpuView, pools: CpuPools, cpus: frozenset[int]) -> Iterator[CgroupWrite]:
    """Yield the value of every best-effort directory.

    With kubelet's static policy the levels above the containers keep the whole pool: kubelet writes containers' sets,
    and those above them must not stand in its way.
    """
    of_others = pools.cpus if cpu.placement.manager_policy == "static" else cpus
    for each in cpu.measured.be_cgroups:
        yield _write(each, cpus if each.level == "container" else of_others)


def recovered_cpuset(cpu: CpuView, pools: CpuPools, use: Use, keep: Iterable[str] = ()) -> Iterator[CgroupWrite]:
    """Yield the whole pool for every best-effort directory, except for containers of the pods in `keep`.

    Unless suppression is `using` their sets, only for those that have other CPUs: where they were never set, on v2
    every cpuset.cpus is empty and has to stay so, and a directory that was given no cpuset controller has no such file.
    Nothing where the pool has fewer than two CPUs: then what there is stays, and the quota holds.
    """
    kept, cpus = set(keep), pools.cpus
    whole = tuple(sorted(cpus))
    if len(cpus) < MIN_CPUS:
        return
    for each in cpu.measured.be_cgroups:
        if (use == "using" or each.cpus not in (None, whole)) and (each.level != "container" or each.uid not in kept):
            yield _write(each, cpus)


def _write(each: BeCgroup, cpus: frozenset[int]) -> CgroupWrite:
    return CgroupWrite(each.path, CgroupFile.CPUSET_CPUS, cpus)


def _rounded_up(amount: int, unit: int) -> int:
    return -(-amount // unit)


def be_root(cpu: CpuView) -> BeCgroup | None:
    """Return the best-effort directory, None where it is not there."""
    return next((each for each in cpu.measured.be_cgroups if each.level == "root"), None)


def recovered_quota(cpu: CpuView, state: SuppressState) -> Iterator[CgroupWrite]:
    """Yield that the best-effort directory has no quota, until it is seen to have none; later it may get another's."""
    root, quota = be_root(cpu), cpu.measured.be_quota
    if root is not None and quota is not None and _is_due(state.quota, quota.quota_us is not None):
        yield quota_write(root.path, None)


def recovered_idle(cpu: CpuView, state: SuppressState) -> Iterator[CgroupWrite]:
    """Yield the same of its being idle."""
    root, idle = be_root(cpu), cpu.measured.be_idle
    if root is not None and idle is not None and _is_due(state.idle, bool(idle)):
        yield CgroupWrite(root.path, CgroupFile.CPU_IDLE, 0)


# What suppression wrote is taken back whatever was measured: that may have been before it wrote.
def _is_due(use: Use, is_set: bool) -> bool:
    return use == "using" or (use == "unknown" and is_set)


def recovery(cpu: CpuView, state: SuppressState, reason: str) -> DesiredState:
    """Return what undoes suppression, without what is undone already.

    From an unknown state everything is: a predecessor may have ended without a word. What others set there is lost with
    it, once, as with koordlet.
    """
    cpuset = recovered_cpuset(cpu, be_pools(cpu), state.cpuset) if state.cpuset != "recovered" else ()
    return DesiredState(reason, (*cpuset, *recovered_quota(cpu, state), *recovered_idle(cpu, state)))


def recovered_state(cpu: CpuView, state: SuppressState) -> SuppressState:
    """Return the state with what is seen to be recovered: a write may fail, so only the kernel says that it is done.

    When each value grew last stays known: a policy that is left and taken up again grows no faster for it.

    A pool of fewer than two CPUs is not written (`recovered_cpuset`), and nothing is seen by it therefore.
    """
    quota, pool = cpu.measured.be_quota, be_pools(cpu).cpus
    whole = tuple(sorted(pool))  # to be compared with: 440 subsets of 512 CPUs take 5 ms
    has_pool = len(pool) >= MIN_CPUS and all(
        each.cpus is None or each.cpus == whole or pool.issubset(each.cpus) for each in cpu.measured.be_cgroups
    )
    return replace(
        state,
        is_ruled=True,
        cpuset="recovered" if has_pool else state.cpuset,
        quota="recovered" if quota is None or quota.quota_us is None else state.quota,
        idle="recovered" if not cpu.measured.be_idle else state.idle,
        memory_hold=None,
    )
