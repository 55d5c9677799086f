"""How much CPU is left for best-effort pods."""

from __future__ import annotations

import msgspec

from koordebpf.state.cpu.measured import CpuUsage, CpuView, OtherPodsCpu, PodCpu
from koordebpf.units import format_millicpu


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

    @property
    def sentence(self) -> str:
        """The sum, for people."""
        minimum = ", raised to the minimum" if self.is_minimum else ""
        return (
            f"{format_millicpu(self.be_millicpu)} for best-effort pods: {self.threshold_percent} % of "
            f"{format_millicpu(self.capacity_millicpu)} − {format_millicpu(self.pods_millicpu)} of pods − "
            f"{format_millicpu(self.host_applications_millicpu)} of host applications − "
            f"{format_millicpu(self.system_millicpu)} of the system{minimum}"
        )


def be_amount(cpu: CpuView, usage: CpuUsage, threshold_percent: int, min_percent: int | None) -> BeAmount:
    """Return what the others leave of the threshold.

    Only what runs in the best-effort directory counts as best-effort: that is what suppression holds, whatever the
    labels say. Its usage is read from the directory itself, so that a pod without samples of its own is never taken
    for the system's. README.md has who counts as what, and where Koordinator counts otherwise.

    BE = capacity · threshold − pods − host applications − max(node − pods − host applications − best-effort, reserved)

    A burst takes CPU from best-effort pods at once, where it was measured; it does not make the system's share smaller.

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
    left = cpu.capacity_millicpu * threshold_percent // 100 - pods - applications - system
    minimum = cpu.capacity_millicpu * min_percent // 100 if min_percent is not None else None
    is_minimum = minimum is not None and minimum > left
    return BeAmount(
        be_millicpu=max(left, minimum) if minimum is not None else left,
        capacity_millicpu=cpu.capacity_millicpu,
        threshold_percent=threshold_percent,
        pods_millicpu=pods,
        host_applications_millicpu=applications,
        system_millicpu=system,
        is_minimum=is_minimum,
    )
