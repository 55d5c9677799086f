"""Policy cpuset: on which CPUs best-effort pods may run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.policy.reconcile.values import CgroupWrite
from koordebpf.policy.suppress.pools import CpuPools
from koordebpf.state.cpu.measured import BeCgroup, Cpu, CpuView
from koordebpf.state.suppression import Use

MIN_CPUS = 2  # Why: koordlet's least; with one CPU a pod that waits for its own other thread stands still
_STEPS = 10  # Why: koordlet's growth is a tenth of the node's CPUs at a time, rounded up


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
    turn = idle = 0
    while count - len(chosen) > 1 and idle < len(order):
        pair = pairs[turn].popleft() if pairs[turn] else ()
        chosen += pair
        used.update(pair)
        idle = 0 if pair else idle + 1
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
