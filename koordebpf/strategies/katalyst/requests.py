"""What the plugins of one round ask for together: pods to force out, pods to evict softly. Pure.

Source: katalyst-core pkg/agent/evictionmanager/eviction_resp_collector.go.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from decimal import Decimal
from typing import NamedTuple

import msgspec

from koordebpf.policy.evict.exemptions import Reason
from koordebpf.policy.strategy import RequestNews
from koordebpf.state.view import MINUTE_NS, NodeView, PastEviction, PodView
from koordebpf.strategies.katalyst.plugin import FORCE, SOFT
from koordebpf.strategies.katalyst.values import Condition, PluginAnswer, Threshold
from koordebpf.units import NS_PER_S

BUCKET_NS = 600 * NS_PER_S  # Why: the windows that Katalyst's plugins look at are multiples of it
KEPT_NS = 7200 * NS_PER_S  # Why: the longest of those windows
# Why: an eviction that the API server refuses is withdrawn within its tries, 20 s; the view lists a minute.
_SETTLED_NS = 40 * NS_PER_S
NO_CANDIDATE = "no_candidate"  # the code of a pod that plugins were not asked about
_EXPONENT_FROM, _EXPONENT_BELOW = 6, -4  # strconv.FormatFloat(value, 'g', -1, 64)
_MOST_A_MINUTE = 20  # Why: a plugin that names other pods each round is not to fill the audit: 9 MB a day at most
_MOST_KNOWN = 2000  # Why: as many pods as an answer may name
_LONGEST_UID = 64  # Why: a UID has 36 characters, and a plugin may send any text


# Since when thresholds are met, and for how long conditions are reported.
#
# Source: katalyst-core pkg/agent/evictionmanager/manager.go, thresholds and conditions first and last observed.


class MetSince(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A threshold that is met without a break; `has_failed`: the plugin's last call gave no answer."""

    since_ns: int
    has_failed: bool = False


class LastMet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition, and when it was met last."""

    condition: Condition
    last_ns: int


def met_since(before: Mapping[str, MetSince], answers: Iterable[PluginAnswer], now_ns: int) -> dict[str, MetSince]:
    """Return since when each plugin's threshold is met, by plugin.

    One that is not met any more starts again. A single call that fails stops no clock, the second one in a row does.
    """
    after: dict[str, MetSince] = {}
    for answer in answers:
        known = before.get(answer.plugin)
        if answer.threshold is not None:
            after[answer.plugin] = MetSince(known.since_ns if known else now_ns)
        elif answer.problem is not None and known is not None and not known.has_failed:
            after[answer.plugin] = MetSince(known.since_ns, has_failed=True)
    return after


def is_actionable(answer: PluginAnswer, clocks: Mapping[str, MetSince], now_ns: int) -> bool:
    """Tell whether a threshold has been met for its grace period."""
    clock, threshold = clocks.get(answer.plugin), answer.threshold
    return threshold is not None and clock is not None and now_ns - clock.since_ns >= threshold.grace_s * NS_PER_S


def last_met(
    before: Iterable[LastMet], answers: Iterable[PluginAnswer], now_ns: int, transition_ns: int
) -> tuple[LastMet, ...]:
    """Return the conditions that are reported: met within the transition period, by name; none where that is 0."""
    kept = {each.condition.name: each for each in before}
    for answer in answers:
        of_threshold = answer.threshold.condition if answer.threshold else None
        for condition in (*answer.conditions, *((of_threshold,) if of_threshold else ())):
            kept[condition.name] = LastMet(condition, now_ns)
    return tuple(kept[name] for name in sorted(kept) if now_ns - kept[name].last_ns < transition_ns)


# Evictions of the last hours.


class PastCount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Evictions of one workload in the bucket that starts at `start_ns`."""

    workload: str
    start_ns: int
    count: int


class Past(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Evictions of workloads by bucket, those up to `until_ns`. The budget of a minute bounds how many there are."""

    until_ns: int = 0
    counts: tuple[PastCount, ...] = ()


def with_settled(past: Past, view: NodeView) -> Past:
    """Return the past with the evictions that are not withdrawn any more, without what is too old."""
    until_ns = max(view.now_ns - _SETTLED_NS, past.until_ns)
    settled = [each for each in view.frame.evictions if past.until_ns < each.at_ns <= until_ns]
    if not settled and all(view.now_ns - each.start_ns < KEPT_NS for each in past.counts):
        return past if not past.counts else msgspec.structs.replace(past, until_ns=until_ns)
    kept = [each for each in added(past.counts, settled) if view.now_ns - each.start_ns < KEPT_NS]
    return Past(until_ns, tuple(kept))


def added(counts: Iterable[PastCount], evictions: Iterable[PastEviction]) -> tuple[PastCount, ...]:
    """Return the counts with more evictions; of a pod without a workload none is kept."""
    sums = {(each.start_ns, each.workload): each.count for each in counts}
    for each in evictions:
        if each.workload is not None:
            key = (each.at_ns // BUCKET_NS * BUCKET_NS, each.workload)
            sums[key] = sums.get(key, 0) + 1
    return tuple(PastCount(workload, start_ns, count) for (start_ns, workload), count in sorted(sums.items()))


# Requests, and what of them may be carried out.


class Wanted(msgspec.Struct, frozen=True):
    """A pod that plugins want evicted. `grace_s` None: its own; `scope` force, soft, or the threshold's."""

    uid: str
    plugin: str
    scope: str
    reason: str
    grace_s: int | None = None


class Refused(msgspec.Struct, frozen=True):
    """What a plugin asked for and does not get, and why: a stable word and the end of a sentence."""

    plugin: str
    uid: str
    code: str
    why: str


class WantedPods(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Pods to force out and pods to evict softly, by UID."""

    forced: Mapping[str, Wanted] = {}
    soft: Mapping[str, Wanted] = {}


class Requests(msgspec.Struct, frozen=True):
    """What a round asks for, by UID. `dry_run` are victims of plugins that only count them."""

    forced: Mapping[str, Wanted] = {}
    soft: Mapping[str, Wanted] = {}
    dry_run: tuple[Wanted, ...] = ()
    refused: tuple[Refused, ...] = ()

    @property
    def asked(self) -> WantedPods:
        """What of it is carried out."""
        return WantedPods(self.forced, self.soft)


def gather(
    answers: Iterable[PluginAnswer],
    clocks: Mapping[str, MetSince],
    now_ns: int,
    candidates: Collection[str],
    kept: Mapping[str, Reason],
    dry_run: Collection[str],
) -> Requests:
    """Return what the plugins ask for, each pod once; a soft request for a pod that is forced is none.

    Plugins count in the order of their names, so that the same answers give the same result; where Katalyst lets the
    last answer of a chance order stand. A grace period below 0 refuses that request.

    Args:
        answers: of all plugins.
        clocks: since when thresholds are met.
        now_ns: CLOCK_MONOTONIC.
        candidates: UIDs that plugins were asked about: no other pod is evicted, whatever names it.
        kept: why pods that they might have been asked about may not go now, by UID.
        dry_run: plugins whose victims are counted and not evicted.
    """
    forced: dict[str, Wanted] = {}
    soft: dict[str, Wanted] = {}
    counted: list[Wanted] = []
    refused: list[Refused] = []
    for answer in sorted(answers, key=lambda each: each.plugin):
        for is_forced, wanted in _wanted_by(answer, clocks, now_ns):
            if (why := _refusal(wanted, candidates, kept)) is not None:
                refused.append(Refused(wanted.plugin, wanted.uid, *why))
            elif answer.plugin in dry_run:
                counted.append(wanted)
            elif is_forced:
                forced[wanted.uid] = joined(forced.get(wanted.uid), wanted)
            else:
                soft[wanted.uid] = wanted
    soft = {uid: wanted for uid, wanted in soft.items() if uid not in forced}
    return Requests(forced, soft, tuple(counted), tuple(refused))


def threshold_reason(plugin: str, threshold: Threshold) -> str:
    """Return Katalyst's text for a pod that is evicted for a threshold."""
    target, observed = go_float(threshold.value), go_float(threshold.observed)
    return f"plugin {plugin} met threshold in scope {threshold.scope}, target {target}, observed {observed}"


def go_float(value: float) -> str:
    """Return a number as Go's %v prints a float64: the fewest digits, with an exponent from 1e+06 and below 1e-04.

    >>> [go_float(each) for each in (5368709120.0, 100000.0, 0.5, 1e6, 0.00001, 0.0)]
    ['5.36870912e+09', '100000', '0.5', '1e+06', '1e-05', '0']
    """
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'+' if value > 0 else '-'}Inf"
    shortest = Decimal(repr(value)).normalize()
    if not shortest:
        return "0"
    sign, digits, _ = shortest.as_tuple()
    exponent = shortest.adjusted()
    if _EXPONENT_BELOW <= exponent < _EXPONENT_FROM:
        return f"{shortest:f}"
    first, *rest = map(str, digits)
    mantissa = f"{first}.{''.join(rest)}" if rest else first
    return f"{'-' if sign else ''}{mantissa}e{exponent:+03d}"


def _wanted_by(answer: PluginAnswer, clocks: Mapping[str, MetSince], now_ns: int) -> Iterable[tuple[bool, Wanted]]:
    for each in answer.evict:
        scope = FORCE if each.is_forced else SOFT
        reason = f"plugin {answer.plugin} asks for it: {each.reason}"
        yield each.is_forced, Wanted(each.uid, answer.plugin, scope, reason, each.grace_s)
    threshold = answer.threshold
    if threshold is None or answer.top is None or not is_actionable(answer, clocks, now_ns):
        return
    reason = threshold_reason(answer.plugin, threshold)
    is_hard = threshold.met == "hard"
    grace_s = answer.top.grace_s if is_hard else None  # as in Katalyst: a soft threshold leaves a pod its own
    for uid in answer.top.uids:
        yield is_hard, Wanted(uid, answer.plugin, threshold.scope, reason, grace_s)


def _refusal(wanted: Wanted, candidates: Collection[str], kept: Mapping[str, Reason]) -> Reason | None:
    if (why := kept.get(wanted.uid)) is not None:
        return why
    if wanted.uid not in candidates:
        return NO_CANDIDATE, "it is no pod that plugins were asked about"
    if wanted.grace_s is not None and wanted.grace_s < 0:
        return "negative_grace", f"the grace period {wanted.grace_s} s is below 0"
    return None


def joined(before: Wanted | None, wanted: Wanted) -> Wanted:
    """Return what two plugins that force the same pod out ask for together: the longer grace period, both reasons."""
    if before is None:
        return wanted
    grace_s = wanted.grace_s
    if before.grace_s is not None:
        grace_s = max(before.grace_s, grace_s or 0)
    return msgspec.structs.replace(wanted, grace_s=grace_s, reason=f"{wanted.reason}; {before.reason}")


# Which requests are not carried out, each reported once: those that are refused, and those of a dry run.


class RequestKey(NamedTuple):
    """What a request is about. `code` is why it is refused, or `dry_run`."""

    plugin: str
    uid: str
    code: str


class ReportedRequests(msgspec.Struct, frozen=True):
    """What was reported and still is asked for, and how many were reported in this minute."""

    known: frozenset[RequestKey] = frozenset()
    minute_ns: int = 0
    count: int = 0


def request_news(
    before: ReportedRequests, requests: Requests, plugins: Collection[str], pods: Iterable[PodView], now_ns: int
) -> tuple[tuple[RequestNews, ...], ReportedRequests]:
    """Return the requests that were not asked for in the round before; the rest of too many follows in later rounds.

    Args:
        before: of the round before.
        requests: of this round.
        plugins: that answered in this round; of others nothing has changed.
        pods: of the node.
        now_ns: CLOCK_MONOTONIC.
    """
    names = {pod.uid: (pod.namespace, pod.name) for pod in pods}
    found: dict[RequestKey, RequestNews] = {}
    for refused in requests.refused:
        uid = refused.uid[:_LONGEST_UID]
        key = RequestKey(refused.plugin, uid, refused.code)
        namespace, name = names.get(refused.uid, ("", ""))
        found[key] = RequestNews(refused.plugin, uid, namespace, name, "refused", refused.code, refused.why)
    for wanted in requests.dry_run:
        key = RequestKey(wanted.plugin, wanted.uid, "dry_run")
        namespace, name = names.get(wanted.uid, ("", ""))
        found[key] = RequestNews(wanted.plugin, wanted.uid, namespace, name, "dry_run", "dry_run", wanted.reason)
    is_same_minute = now_ns - before.minute_ns < MINUTE_NS
    minute_ns, count = (before.minute_ns, before.count) if is_same_minute else (now_ns, 0)
    fresh = sorted(key for key in found if key not in before.known)[: max(_MOST_A_MINUTE - count, 0)]
    kept = {key for key in before.known if key.plugin not in plugins or key in found}
    known = frozenset(sorted(kept.union(fresh))[:_MOST_KNOWN])
    return tuple(found[key] for key in fresh), ReportedRequests(known, minute_ns, count + len(fresh))
