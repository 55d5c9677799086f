"""Katalyst's eviction manager as a strategy: one round of plugins to demands, notices and conditions. Pure.

Source: katalyst-core pkg/agent/evictionmanager/manager.go.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from koordebpf.policy.detect.verdict import Need, Verdict
from koordebpf.policy.evict.exemptions import Reason, exclusion
from koordebpf.policy.evict.ranking import as_candidates
from koordebpf.policy.evict.resources import Relief
from koordebpf.policy.evict.round import Round
from koordebpf.policy.evict.settings import EvictSettings, capped_grace_s
from koordebpf.policy.plan import Candidate, Holding
from koordebpf.policy.strategy import Decision, Demand, NamedExecutor, Ranking, SoftNotice, Strategy
from koordebpf.slo.katalyst import MEMORY_ENHANCEMENT, QOS_LEVEL, SOFT_NOTICE
from koordebpf.state.amount import MEMORY, Dimension, Resource
from koordebpf.state.view import NodeView, PodView
from koordebpf.strategies.katalyst.inner import choose_inside, judge_inside, pressing, problem_text, typed_states
from koordebpf.strategies.katalyst.plugin import CONFIG_SOURCE_ANNOTATION, KatalystPod, Seen, candidates, katalyst_pods
from koordebpf.strategies.katalyst.plugins.cnr import NIC_SELECTION_RESULT, NUMA_BIND_RESULT
from koordebpf.strategies.katalyst.requests import (
    NO_CANDIDATE,
    LastMet,
    MetSince,
    Refused,
    Requests,
    Wanted,
    WantedPods,
    gather,
    last_met,
    met_since,
    with_settled,
)
from koordebpf.strategies.katalyst.rounds import (
    ManagerState,
    RemoteCall,
    due_ns,
    filled,
    outside_round,
    sent_since,
    with_records,
    with_round,
)
from koordebpf.strategies.katalyst.settings import (
    EXECUTORS,
    KatalystSettings,
    KillerSettings,
    grace_s,
    is_listed,
    kept_now,
)
from koordebpf.strategies.katalyst.values import KatalystMeasured, PluginAnswer
from koordebpf.units import format_bytes

GATE = "KatalystEviction"
Mode = Literal["force", "soft"]
# Two resources: a forced pod that is evicted makes up for no soft one.
ASKED_PODS: Mapping[Mode, Dimension] = {
    "force": Dimension("forced pods", Resource("forced pods"), is_use=True),
    "soft": Dimension("soft pods", Resource("soft pods"), is_use=True),
}


class KatalystDecision(Decision[ManagerState], frozen=True, kw_only=True):
    """The decision with what is done beside evictions.

    `notices`   pods to be notified of a soft eviction.
    `listening` namespace and name of all that want such a notice.
    `reported`  conditions that the node is to have.
    `call`      what plugins outside are to be called for now.
    `requests`  what the plugins of this round asked for; None: no round ended.
    `answers`   of the plugins whose round ended.
    `active`    how many pods did not end, and `candidates` of how many of them plugins are asked.
    """

    notices: tuple[SoftNotice, ...] = ()
    listening: tuple[tuple[str, str], ...] = ()
    reported: tuple[LastMet, ...] = ()
    call: RemoteCall | None = None
    requests: Requests | None = None
    answers: tuple[PluginAnswer, ...] = ()
    active: int = 0
    candidates: int = 0

    @property
    def problems(self) -> tuple[str, ...]:
        """What plugins of a round that ended lack, or why their calls failed, as readiness has it."""
        return tuple(
            f"{each.plugin} {text}" for each in self.answers if (text := problem_text(each.plugin, each.problem))
        )


class KatalystEviction(Strategy[KatalystMeasured, ManagerState, KatalystSettings]):
    """Katalyst's eviction manager: plugins inside and outside, soft and forced pods, conditions."""

    name = "katalystEviction"
    gate = GATE
    summary = "evict what Katalyst's eviction plugins ask for"
    measured = KatalystMeasured
    settings = KatalystSettings
    state = ManagerState
    section = "eviction.katalyst"
    reads_eviction = True
    may_choose_any = True
    reads_cnr = True
    keeps_time = True
    annotations = frozenset(
        {
            CONFIG_SOURCE_ANNOTATION,
            MEMORY_ENHANCEMENT,
            NIC_SELECTION_RESULT,
            NUMA_BIND_RESULT,
            QOS_LEVEL,
            SOFT_NOTICE,
        }
    )

    def annotations_named(self, settings: KatalystSettings) -> Iterable[str]:
        """As `Strategy.annotations_named`."""
        return {*settings.skip.annotations}.union(*settings.qos.by_level().values())

    def executors_named(self, settings: KatalystSettings) -> Iterable[NamedExecutor]:
        """As `Strategy.executors_named`."""
        return [
            NamedExecutor(f"{self.section}.killers.{name}", killer, EXECUTORS[killer])
            for name, killer in settings.killers.named().items()
        ]

    def decide(
        self,
        view: NodeView,
        measured: KatalystMeasured | None,
        state: ManagerState,
        settings: KatalystSettings,
        eviction: EvictSettings = EvictSettings(),  # noqa: B008 - frozen
    ) -> KatalystDecision:
        """Return what the queue still asks for, or the demands of a round that ends now."""
        state = replace(state, inner=typed_states(state.inner))
        is_due = state.synced_ns is None or view.now_ns - state.synced_ns >= settings.sync_ns
        pods = _pods(view, settings, eviction)
        measured = measured or KatalystMeasured()
        seen = pods.seen(view, measured, is_regular=is_due)
        outside = outside_round(seen, state.remote, settings.deadline_ns)
        state = replace(state, remote=outside.state, queue=replace(state.queue, sent=sent_since(state.queue, view)))
        short = pressing(seen, settings.inner, state.pressing)
        news = tuple(name for name in short if name not in state.pressing and is_listed(name, settings.plugins))
        seen = replace(seen, pressing=news)
        inside: tuple[PluginAnswer, ...] = ()
        found: list[Requests] = []
        if is_due or seen.pressing:
            inside, refused, state = _inside(seen, pods, state, settings)
            asked = _gathered(pods, seen.now_ns, state.clocks, settings, inside)
            found.append(replace(asked, refused=(*asked.refused, *refused)))
            awaits = is_due and bool(measured.remote_plugins)
            state = replace(state, queue=with_round(state.queue, found[-1].asked, view.now_ns, awaits_outside=awaits))
        if outside.answers:
            found.append(_gathered(pods, seen.now_ns, state.remote.clocks, settings, outside.answers))
            state = replace(state, queue=replace(state.queue, outside=found[-1].asked))
        elif not measured.remote_plugins and state.queue.outside != WantedPods():
            state = replace(state, queue=replace(state.queue, outside=WantedPods()))
        if found:
            state = replace(state, queue=filled(state.queue, seen, settings.burst))
        answers = (*inside, *outside.answers)
        counted = [each for each in answers if not is_listed(each.plugin, settings.dry_run)]
        state = replace(
            state,
            conditions=last_met(state.conditions, counted, view.now_ns, settings.transition_ns),
            pressing=short,
            past=with_settled(state.past, view),
        )
        call = outside.call
        if call is not None and settings.records:
            call = with_records(call, view, state.past)
        made = _decision(seen, pods, state, settings, eviction, _both(found), call)
        return replace(made, answers=answers)


KATALYST_EVICTION = KatalystEviction()


class _Pods(NamedTuple):
    """The active pods, those that plugins may be asked about, and why some of these may not go now."""

    active: tuple[KatalystPod, ...]
    asked: tuple[KatalystPod, ...]
    kept: Mapping[str, Reason]  # by UID
    kept_softly: Mapping[str, Reason]  # the same of soft evictions
    leaving: frozenset[str]

    def seen(self, view: NodeView, measured: KatalystMeasured, *, is_regular: bool) -> Seen:
        """Return what plugins decide from: they choose from pods that may go now."""
        return Seen(
            view,
            measured,
            self.active,
            tuple(each for each in self.asked if each.pod.uid not in self.kept),
            is_regular,
            kept_softly=self.kept_softly.keys(),
            leaving=tuple(each for each in self.active if each.pod.uid in self.leaving),
        )


def _pods(view: NodeView, settings: KatalystSettings, eviction: EvictSettings) -> _Pods:
    active = katalyst_pods(view.pods, settings.qos.by_level())
    asked = candidates(active, settings.skip)
    current = Round(view, eviction, ())
    kept = kept_now(current, asked, settings.killers, is_soft=False)
    # Of soft evictions PodDisruptionBudgets are judged, too.
    kept_softly = kept_now(current, asked, settings.killers, is_soft=True) if view.frame.podDisruptionBudgets else kept
    return _Pods(active, asked, kept, kept_softly, frozenset(pod.uid for pod in current.leaving))


# What plugins ask for, what they would ask for if every pod could go now, and the state after the round.
def _inside(
    seen: Seen, pods: _Pods, state: ManagerState, settings: KatalystSettings
) -> tuple[tuple[PluginAnswer, ...], tuple[Refused, ...], ManagerState]:
    def asked(seen: Seen) -> tuple[tuple[PluginAnswer, ...], dict[str, Any], Mapping[str, MetSince]]:
        answers, inner = judge_inside(seen, state.inner, settings.inner, lambda name: is_listed(name, settings.plugins))
        clocks = met_since(state.clocks, answers, seen.now_ns)
        return *choose_inside(answers, clocks, seen, inner, settings.inner), clocks

    answers, inner, clocks = asked(seen)
    refused: tuple[Refused, ...] = ()
    if pods.kept_softly:
        ideal, _, _ = asked(replace(seen, candidates=pods.asked, kept_softly=(), leaving=()))
        wished = gather(ideal, clocks, seen.now_ns, (), {**pods.kept_softly, **pods.kept}, ())
        refused = tuple(each for each in wished.refused if each.code != NO_CANDIDATE)
    waits = dict(_waiting(answers))
    passed_over = [each for each in refused if each.plugin not in waits]
    said = (*waits.values(), *_passed_over(passed_over, pods))
    return answers, refused, replace(state, inner=inner, clocks=clocks, synced_ns=seen.now_ns, waits=said)


def _waiting(answers: Iterable[PluginAnswer]) -> Iterator[tuple[str, str]]:
    for each in answers:
        if each.top is not None and each.top.waits is not None:
            yield each.plugin, f"{each.plugin} waits: {each.top.waits}"


def _passed_over(refused: Sequence[Refused], pods: _Pods) -> Iterator[str]:
    names = {each.pod.uid: each.pod.key for each in pods.asked}
    for plugin, of_plugin in itertools.groupby(refused, key=lambda each: each.plugin):
        first, *others = of_plugin
        more = f" and {len(others)} more" if others else ""
        yield f"{plugin} passes over {names[first.uid]} ({first.why}){more}"


def _gathered(
    pods: _Pods,
    now_ns: int,
    clocks: Mapping[str, MetSince],
    settings: KatalystSettings,
    answers: Iterable[PluginAnswer],
) -> Requests:
    dry = [each.plugin for each in answers if is_listed(each.plugin, settings.dry_run)]
    may_go = {each.pod.uid for each in pods.asked} - pods.kept.keys()
    return gather(answers, clocks, now_ns, may_go, pods.kept, dry)


# What plugins inside and outside ask for, where both have answered at the same moment; None: none has.
def _both(found: Sequence[Requests]) -> Requests | None:
    if len(found) < 2:
        return found[0] if found else None
    first, second = found
    return Requests(
        {**first.forced, **second.forced},
        {**first.soft, **second.soft},
        (*first.dry_run, *second.dry_run),
        (*first.refused, *second.refused),
    )


def _decision(
    seen: Seen,
    pods: _Pods,
    state: ManagerState,
    settings: KatalystSettings,
    eviction: EvictSettings,
    requests: Requests | None,
    call: RemoteCall | None,
) -> KatalystDecision:
    wants_notice = {each.pod.uid: each.pod for each in seen.active if each.wants_notice}
    queue = state.queue
    # What a pod says of itself may have changed since. Each is sent once a round, and of the soft ones one.
    asked_for = {each.pod.uid: each for each in seen.candidates}
    forced = [each for each in queue.forced if each.uid in asked_for and each.uid not in queue.sent]
    soft = [each for each in queue.soft if each.uid in asked_for and each.uid not in wants_notice]
    if not queue.has_soft_place or queue.is_soft_used or any(each.uid in queue.sent for each in queue.soft):
        soft = []
    demands = []
    if forced:
        demands.append(_demand(seen, settings.killers, eviction, forced, len(forced), "force"))
    if soft:
        demands.append(_demand(seen, settings.killers, eviction, soft, 1, "soft"))
    synced_ns = seen.now_ns if state.synced_ns is None else state.synced_ns
    remote_ns = due_ns(state.remote, settings.deadline_ns)
    wakes = [synced_ns + settings.sync_ns, *(() if remote_ns is None else (remote_ns,))]
    return KatalystDecision(
        state=state,
        reason=_asked_text(state, settings),
        demands=tuple(demands),
        conditions=tuple(f"{each.condition.name} is met" for each in state.conditions),
        wake_at_ns=min(wakes),
        notices=tuple(
            SoftNotice(pod.namespace, pod.name, each.plugin, each.reason, pod.uid)
            for each in queue.soft
            if requests is not None and each.uid in requests.soft
            if (pod := wants_notice.get(each.uid)) is not None
        ),
        listening=tuple((pod.namespace, pod.name) for pod in wants_notice.values()),
        reported=state.conditions,
        call=call,
        requests=requests,
        active=len(seen.active),
        candidates=len(pods.asked),
    )


def _asked_text(state: ManagerState, settings: KatalystSettings) -> str:
    forced, soft = len(state.queue.forced), len(state.queue.soft)
    names = sorted({each.plugin for each in (*state.queue.forced, *state.queue.soft)})
    if not names:
        return "; ".join(("no eviction plugin asks for a pod", *state.waits))
    how = " and ".join(f"{count} {mode}" for count, mode in ((forced, "forced"), (soft, "soft")) if count)
    noun = "eviction" if forced + soft == 1 else "evictions"
    asks = f"{', '.join(names)} {'asks' if len(names) == 1 else 'ask'} for {how} {noun}"
    full: tuple[str, ...] = ()
    if soft and not state.queue.has_soft_place:
        full = (f"burst {settings.burst} leaves no place for a soft one in this round",)
    return "; ".join((asks, *full, *state.waits))


def _memory_text(candidate: Candidate, _: Iterable[Dimension]) -> str:
    return format_bytes(candidate.of(MEMORY).released)


def _why(wanted: Wanted, mode: Mode, graces: Mapping[str, int | None]) -> str:
    how = "forced" if mode == "force" else "soft"
    asked_s = graces[wanted.uid]
    grace = "" if asked_s is None else f", grace period {asked_s} s"
    return f"{wanted.reason}; {how}{grace}"


def _demand(
    seen: Seen, settings: KillerSettings, eviction: EvictSettings, wanted: Sequence[Wanted], most: int, mode: Mode
) -> Demand:
    found = {each.pod.uid: each for each in seen.candidates}
    order = [each.uid for each in wanted]
    killers = {uid: killer for uid in order if (killer := settings.of(found[uid])) is not None}
    graces: dict[str, int | None] = {}
    for each in wanted:
        pod = found[each.uid].pod
        hurried_s = capped_grace_s(pod, seen.view, eviction) if pod.is_terminating else None
        graces[each.uid] = grace_s(each, found[each.uid], killers.get(each.uid, seen.view.frame.executor), hurried_s)
    reasons = {each.uid: _why(each, mode, graces) for each in wanted}
    verdict = Verdict(
        GATE,
        fires=True,
        reason=reasons[wanted[0].uid],
        needs=(Need(ASKED_PODS[mode], min(most, len(order)), len(order), len(seen.active)),),
    )

    resource = ASKED_PODS[mode].resource

    def holding(pod: PodView, _: bool) -> Holding:
        return Holding(resource, int(pod.uid in reasons), int(pod.uid in reasons))

    def rank(current: Round) -> Ranking:
        kept = kept_now(current, found.values(), settings, is_soft=mode == "soft")
        pods = [current.pods[uid] for uid in order if uid in current.pods]
        free = [pod for pod in pods if pod.uid not in kept]
        excluded = tuple(exclusion(pod, kept[pod.uid]) for pod in pods if pod.uid in kept)
        return as_candidates(free, current.reliefs, current.caused), excluded

    return Demand(
        verdict,
        Relief(resource, holding, lambda pod, _: 0, gives=_memory_text),
        rank,
        "pod that a plugin asks for",
        mode=mode,
        reasons=reasons,
        grace_s={uid: each for uid, each in graces.items() if each is not None},
        killers=killers,
    )
