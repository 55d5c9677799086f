"""What each rung of the ladder would do about the victims of a plan."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from koordebpf.policy.ladder_settings import LadderSettings, Rung
from koordebpf.policy.plan import Candidate, FeaturePlan, RungAction, RungPlan
from koordebpf.state.amount import MEMORY, USED, Amount, Resource
from koordebpf.state.measured import MemoryParts
from koordebpf.state.view import NodeView, PodView
from koordebpf.units import format_bytes

_NAMES = 3  # pods spelled out in a sentence


def rung_plans(view: NodeView, features: Sequence[FeaturePlan], settings: LadderSettings) -> tuple[RungPlan, ...]:
    """Return what every rung would do, configured or not; nothing where there is no victim.

    Brake and freeze are for those that grow or made others stall: the rest is not what makes the node short. They and
    reclaim are for a shortage of memory; for what pods request only eviction helps.
    """
    victims = [victim.candidate for feature in features for victim in feature.victims]
    if not victims:
        return ()
    for_use = [
        victim.candidate for feature in features if USED in feature.verdict.amounts for victim in feature.victims
    ]
    need = max((feature.verdict.amounts.get(USED, 0) for feature in features), default=0)
    for_stalls = {
        victim.candidate.uid for feature in features if feature.verdict.stall is not None for victim in feature.victims
    }
    pods = {pod.uid: pod for pod in view.pods}
    growing = [each for each in for_use if (each.growth_bytes_per_s or 0) > 0 or each.caused_ns]
    whole = {each.uid: _whole(each) for each in victims}
    actions, gives = list(whole.values()), [each.of(MEMORY).released for each in victims]
    return (
        _brake(growing, pods, settings),
        _reclaim(for_use, pods, need, settings, for_stalls),
        _freeze([whole[each.uid] for each in growing], settings),
        _evict(actions, sum(gives), _others_of(features), settings),
        _kill(actions, gives, settings, _used_others_of(features)),
    )


def _brake(growing: Sequence[Candidate], pods: dict[str, PodView], settings: LadderSettings) -> RungPlan:
    actions = tuple(
        RungAction(
            each.uid,
            each.namespace,
            each.name,
            each.cgroup_id,
            memory.usage_bytes * settings.brake_percent // 100,
            settings.quota_percent,
        )
        for each in growing
        if (memory := pods[each.uid].memory) is not None
    )
    held = ", ".join(f"{_name(each)} at {format_bytes(each.memory_high_bytes or 0)}" for each in actions[:_NAMES])
    text = f"memory.high holds {held}{_more(actions)}; without one, {settings.quota_percent} % of a CPU"
    return _rung(Rung.BRAKE, settings, actions, text, "no victim grows", undo="memory.high and quota as before")


# Of those that go for stalls the page cache alone: it keeps others' out, and the rest of them is not what is short.
def _reclaim(
    victims: Sequence[Candidate],
    pods: dict[str, PodView],
    need: int,
    settings: LadderSettings,
    for_stalls: Collection[str],
) -> RungPlan:
    actions: list[RungAction] = []
    left = need
    for each in victims:
        if left <= 0:
            break
        memory = pods[each.uid].memory
        amount = min(left, _reclaimable(memory, each.uid in for_stalls)) if memory is not None else 0
        if amount > 0:
            actions.append(RungAction(each.uid, each.namespace, each.name, each.cgroup_id, None, None, amount))
            left -= amount
    asked = ", ".join(f"{format_bytes(each.reclaim_bytes or 0)} of {_name(each)}" for each in actions[:_NAMES])
    text = f"memory.reclaim takes {asked}{_more(actions)}: page cache, and the rest as far as there is swap"
    return _rung(Rung.RECLAIM, settings, tuple(actions), text, "no victim has memory to reclaim")


def _reclaimable(memory: MemoryParts, is_cache_alone: bool) -> int:
    return memory.inactive_file_bytes + memory.active_file_bytes if is_cache_alone else memory.usage_bytes


def _freeze(growing: Sequence[RungAction], settings: LadderSettings) -> RungPlan:
    text = f"freezes {_names(growing)}: it grows no more and releases nothing"
    return _rung(Rung.FREEZE, settings, tuple(growing), text, "no victim grows", undo="thaw")


# What pods evicted for other resources release of them.
def _others_of(features: Iterable[FeaturePlan]) -> list[Amount]:
    sums: dict[Resource, int] = {}
    for balance in (feature.balance for feature in features):
        if balance.resource != MEMORY:
            sums[balance.resource] = sums.get(balance.resource, 0) + balance.credit
    return [Amount(resource, value) for resource, value in sums.items() if value]


# Of it what a kill releases too: a pod whose processes end requests as much as before.
def _used_others_of(features: Iterable[FeaturePlan]) -> list[Amount]:
    return _others_of(feature for feature in features if any(each.is_use for each in feature.verdict.amounts))


def _evict(victims: Sequence[RungAction], gives: int, others: Sequence[Amount], settings: LadderSettings) -> RungPlan:
    text = f"evicts {_names(victims)}: {_back(gives, others)} come back"
    return _rung(Rung.EVICT, settings, tuple(victims), text, "", gives_bytes=gives)


def _back(gives: int, others: Sequence[Amount]) -> str:
    memory = [Amount(MEMORY, gives)] if gives or not others else []
    return " and ".join(map(str, [*memory, *others]))


def kill_plan(pods: Sequence[PodView], gives: Sequence[int], settings: LadderSettings) -> RungPlan:
    """Return the kill of these pods as far as their cgroups are known; `gives` is what each would release."""
    return _kill([_whole(each) for each in pods], gives, settings)


def _kill(
    pods: Sequence[RungAction], gives: Sequence[int], settings: LadderSettings, others: Sequence[Amount] = ()
) -> RungPlan:
    actions = tuple([each for each in pods if each.cgroup_id is not None])
    back = sum([credit for each, credit in zip(pods, gives, strict=True) if each.cgroup_id is not None])
    text = f"kills the cgroup of {_names(actions)}: {_back(back, others)} come back, what a tmpfs keeps left out"
    return _rung(Rung.KILL, settings, actions, text, "no victim's cgroup is known", gives_bytes=back)


# What is done to a pod as a whole.
def _whole(pod: PodView | Candidate) -> RungAction:
    return RungAction(pod.uid, pod.namespace, pod.name, pod.cgroup_id)


def _rung(
    rung: Rung,
    settings: LadderSettings,
    actions: tuple[RungAction, ...],
    text: str,
    otherwise: str,
    *,
    gives_bytes: int = 0,
    undo: str | None = None,
) -> RungPlan:
    return RungPlan(
        rung=rung,
        is_on=rung in (settings.rungs or {Rung.EVICT}),
        text=text if actions else f"nothing: {otherwise}",
        actions=actions,
        gives_bytes=gives_bytes,
        undo=undo if actions else None,
    )


def _name(action: RungAction) -> str:
    return f"{action.namespace}/{action.name}"


def _names(actions: Sequence[RungAction]) -> str:
    return ", ".join(_name(each) for each in actions[:_NAMES]) + _more(actions)


def _more(actions: Sequence[RungAction]) -> str:
    return f" and {len(actions) - _NAMES} more" if len(actions) > _NAMES else ""
