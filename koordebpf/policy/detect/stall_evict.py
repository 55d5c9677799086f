"""StallEvict: does a latency-sensitive pod stand still for the node's memory, however little of it counts as used.

The kernel counts page cache as available. A node whose pods' files do not fit into what is left thrashes below every
threshold of use.
"""

from __future__ import annotations

from msgspec.structs import replace

from koordebpf.policy.detect.verdict import Need, StallEvidence, Verdict, skip, skipped
from koordebpf.state.amount import USED
from koordebpf.state.measured import StallSample
from koordebpf.state.view import NodeView
from koordebpf.units import NS_PER_S

FEATURE = "StallEvict"

_GAP_NS = 5 * NS_PER_S  # Why: half of what a sample averages; beyond it what was between two of them is unknown
# Of the node's memory, for one reclaim. Why: it shows its effect within seconds, and a larger one would empty the cache
# of a pod that may be allowed to stay.
_RECLAIM_SHARE = 10


def stall_evict(view: NodeView, full_percent: int, seconds: int, *, strict: bool = False) -> Verdict:
    """Judge how long latency-sensitive pods have stalled for the node's memory without a break.

    Stalls at a limit of a pod's own are not in the samples. An eviction restarts the window, and so does a
    rung of the ladder. The need is what the rung `reclaim` may take at once, at most.

    Args:
        view: with the window of samples.
        full_percent: above this share of the time a pod counts as stalled.
        seconds: for so long.
        strict: Koordinator has no such feature, so that it is never judged.

    Fires if: ratio > full_percent / 100 in every sample of the last `seconds`, with at most 5 s between two of them.
    Skips:    strict; as every feature; unmeasured: there is no sample, or none is recent; unknown_stalls: it may be
              above, and the kernel does not say.
    Source:   systemd-oomd's memory pressure limit, oomd's pressure_above.
    """
    evidence = _evidence(view, full_percent / 100, seconds)
    if strict:
        return skip(FEATURE, "strict", "Koordinator has no such feature, and compat is strict")
    if (unjudged := skipped(view, FEATURE, lambda _: None)) is not None:
        return replace(unjudged, stall=evidence)
    if evidence is None:
        return skip(FEATURE, "unmeasured", "how long pods stall for the node's memory is not measured")
    limit = f"{full_percent} %"
    if evidence.above_s is None:
        if evidence.at_most_ratio > evidence.threshold_ratio:
            why = (
                f"{evidence.at_most_pod} may stall for up to {_percent(evidence.at_most_ratio)} > {limit} of the time:"
                " how long all of its tasks wait for the node's memory is not known"
            )
            return replace(skip(FEATURE, "unknown_stalls", why), stall=evidence)
        if not evidence.at_most_pod:
            why = "no latency-sensitive pod stalls for the node's memory"
        else:
            who, ratio = evidence.at_most_pod, evidence.at_most_ratio
            why = f"{who} stalls for at most {_percent(ratio)} ≤ {limit} of the time"
        return Verdict(FEATURE, False, f"{why}{_partly(evidence)}", stall=evidence)
    said = f"{evidence.pod} stalls for {_percent(evidence.ratio)} > {limit} of the time"
    if evidence.above_s < seconds:
        return Verdict(FEATURE, False, f"{said}, for {int(evidence.above_s)} s of {seconds} s", stall=evidence)
    used, capacity = view.used_bytes, view.capacity_bytes
    at = "" if used is None else f"; node at {used * 100 // capacity} %"
    return Verdict(
        FEATURE,
        fires=True,
        reason=f"{said}, for {int(evidence.above_s)} s ≥ {seconds} s{at}",
        needs=(Need(USED, max(capacity // _RECLAIM_SHARE, 1), used or 0, capacity),),
        stall=evidence,
    )


def recent_samples(view: NodeView) -> tuple[StallSample, ...]:
    """Return how latency-sensitive pods stalled, the newest last; (): nothing recent is known."""
    samples = view.measured.stall_window
    return samples if samples and view.now_ns - samples[-1].at_ns <= _GAP_NS else ()


# None: nothing recent is known.
def _evidence(view: NodeView, threshold: float, seconds: int) -> StallEvidence | None:
    samples = recent_samples(view)
    if not samples:
        return None
    newest = samples[-1]
    return StallEvidence(
        ratio=newest.ratio,
        at_most_ratio=newest.at_most_ratio,
        threshold_ratio=threshold,
        above_s=_above_s(samples, threshold, view.frame.lastEvictNs),
        wanted_s=seconds,
        pod=newest.pod,
        at_most_pod=newest.at_most_pod,
        is_whole=newest.is_whole,
    )


# For how long every sample has been above. What lies before an eviction does not count.
def _above_s(samples: tuple[StallSample, ...], threshold: float, evicted_ns: int | None) -> float | None:
    newest = later_ns = first_ns = samples[-1].at_ns
    if samples[-1].ratio <= threshold:
        return None
    for each in reversed(samples):
        is_before = evicted_ns is not None and each.at_ns <= evicted_ns
        if each.ratio <= threshold or later_ns - each.at_ns > _GAP_NS or is_before:
            break
        first_ns = later_ns = each.at_ns
    return (newest - first_ns) / NS_PER_S


def _partly(evidence: StallEvidence) -> str:
    return "" if evidence.is_whole else " (in direct reclaim and compaction: other waits are not timed here)"


def _percent(ratio: float) -> str:
    return f"{100 * ratio:.1f} %"
