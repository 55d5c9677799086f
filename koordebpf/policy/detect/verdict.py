"""A detector's answer and its reasons."""

from __future__ import annotations

import msgspec

from koordebpf.state.view import TimeTo


class Evidence(msgspec.Struct, frozen=True):
    """The numbers a verdict rests on. Bytes; percents as configured."""

    capacity_bytes: int
    used_bytes: int
    used_percent: int  # floor(used · 100 / capacity), Koordinator's integer rule
    threshold_percent: int | None = None
    lower_percent: int | None = None
    threshold_bytes: int | None = None  # smallest usage that fires
    lower_bytes: int | None = None


USED = "used"  # the resource of a need that only released memory can meet


class ResourceNeed(msgspec.Struct, frozen=True):
    """What is too much of one resource. Bytes.

    `resource` is `used`, or what pods request: memory, kubernetes.io/batch-memory or kubernetes.io/mid-memory.
    """

    resource: str
    need_bytes: int  # to release to reach the lower mark
    now_bytes: int  # what is used, or requested
    of_bytes: int  # capacity, or what is allocatable


USED_CPU = "used cpu"  # as `used`, of CPU time
BE_REQUESTED_CPU = "best-effort cpu"  # batch-cpu that pods with the label BE ask for, whatever their band


class CpuMoment(msgspec.Struct, frozen=True, gc=False):
    """CPU used and CPU available, over some time. Millicpu."""

    used_millicpu: int
    of_millicpu: int  # capacity, or what best-effort pods may have
    request_millicpu: int | None = None  # BECPUEvict: what they ask for


class CpuEvidence(msgspec.Struct, frozen=True):
    """The averages a verdict on CPU rests on, and `now`. Millicpu; percents as configured.

    Of BECPUEvict the threshold is of what best-effort pods may have, the marks are of what they ask for.
    """

    window_ns: int
    used_millicpu: int
    of_millicpu: int  # capacity, or what best-effort pods may have
    used_percent: int | None  # floor(used · 100 / of), Koordinator's integer rule; None: there is nothing to have
    threshold_percent: int
    lower_percent: int
    threshold_millicpu: int  # smallest usage that fires
    lower_millicpu: int
    upper_percent: int | None = None  # BECPUEvict, as all below but `now`
    upper_millicpu: int | None = None
    request_millicpu: int | None = None
    now: CpuMoment | None = None


class CpuNeed(msgspec.Struct, frozen=True):
    """What is too much of one resource of CPU. Millicpu.

    `resource` is `used cpu`, `best-effort cpu`, or what pods request: cpu, kubernetes.io/batch-cpu or mid-cpu.
    """

    resource: str
    need_millicpu: int  # to release to reach the lower mark, or the upper one of BECPUEvict
    now_millicpu: int  # what is used, or requested
    of_millicpu: int  # capacity, what is allocatable, or what best-effort pods may have


class StallEvidence(msgspec.Struct, frozen=True):
    """The figures a verdict on stalls rests on. Shares 0 to 1 of the time; seconds.

    `ratio` is known for certain and `at_most_ratio` the most that is possible, of the pods named; no name: no pod
    stalls. `above_s` is for how long `ratio` has been above `threshold_ratio` without a break; None: it is not above.
    `is_whole`: all waits for memory are timed here; else direct reclaim and compaction alone.
    """

    ratio: float
    at_most_ratio: float
    threshold_ratio: float
    above_s: float | None
    wanted_s: int  # for which it has to be above
    pod: str = ""
    at_most_pod: str = ""
    is_whole: bool = True


class Verdict(msgspec.Struct, frozen=True):
    """Whether a condition holds. `reason` is one sentence with both numbers, also where it does not fire.

    `skipped` is set (a short stable word for metrics) when the condition could not or must not be judged. Of a feature
    that judges CPU `cpu` and `cpu_needs` stand in place of `evidence` and `needs`, and the bytes are 0.
    """

    feature: str
    fires: bool
    reason: str
    need_bytes: int = 0  # to release to reach the lower mark; 0 unless it fires
    koordinator_need_bytes: int = 0  # by Koordinator's floored percent, for comparison
    skipped: str | None = None
    evidence: Evidence | None = None
    needs: tuple[ResourceNeed, ...] = ()  # by resource; `need_bytes` is their sum
    ahead: TimeTo | None = None  # it fires before the threshold, which will be crossed in this time
    cpu: CpuEvidence | None = None
    cpu_needs: tuple[CpuNeed, ...] = ()
    stall: StallEvidence | None = None  # StallEvict; its need is what may be reclaimed at once, at most

    @property
    def amounts(self) -> dict[str, int]:
        """Resource → need: bytes, or millicpu of a feature that judges CPU."""
        return {need.resource: need.need_bytes for need in self.needs} | {
            need.resource: need.need_millicpu for need in self.cpu_needs
        }
