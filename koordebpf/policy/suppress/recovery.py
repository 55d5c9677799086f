"""The values as they would be without suppression."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.policy.reconcile.values import CgroupWrite, DesiredState
from koordebpf.policy.suppress.cpuset import MIN_CPUS, recovered_cpuset
from koordebpf.policy.suppress.pools import be_pools
from koordebpf.policy.suppress.quota import quota_write
from koordebpf.state.cpu.measured import BeCgroup, CpuView
from koordebpf.state.suppression import SuppressState, Use


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
