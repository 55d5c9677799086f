"""What best-effort pods ask for of the node's CPU, and what they may have at most."""

from __future__ import annotations

from collections.abc import Iterable

from koordebpf.quantity import total
from koordebpf.state.cpu.measured import BeCgroup, CpuMeasured
from koordebpf.state.view import FINISHED_PHASES, PodView


def be_request_millicpu(pods: Iterable[PodView]) -> int:
    """Return the sum of batch-cpu that pods with the label BE ask for; those that have ended ask for nothing."""
    return total(
        pod.terms.batch_cpu_millicpu for pod in pods if pod.koord_qos == "BE" and pod.phase not in FINISHED_PHASES
    )


def be_sets(be_cgroups: Iterable[BeCgroup]) -> frozenset[tuple[int, ...]]:
    """Return the sets of CPUs that limit best-effort pods. koordlet looks at containers and the directory itself."""
    return frozenset(each.cpus for each in be_cgroups if each.cpus and each.level != "pod")


def be_limit_millicpu(measured: CpuMeasured, sets: frozenset[tuple[int, ...]] | None = None) -> int | None:
    """Return what best-effort pods can use at most: the smallest of their cpusets, or the quota if that is less.

    Without a limit it is the machine, so that a window in which a quota is set and removed is averaged over all of it.
    None: neither could be read.

    Args:
        measured: the node's CPUs.
        sets: `be_sets` of it, for who has them already.
    Source:  koordinator pkg/koordlet/metricsadvisor/collectors/beresource.
    """
    online = frozenset(measured.topology.cpus)
    sets = be_sets(measured.be_cgroups) if sets is None else sets
    limits = [len(online.intersection(cpus)) * 1000 for cpus in sets]
    if (quota := measured.be_quota) is not None:
        limits.append(len(online) * 1000)
        if quota.quota_us is not None:
            limits.append(quota.quota_us * 1000 // quota.period_us)
    return min(limits, default=None)
