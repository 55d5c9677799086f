"""The difference between two plans for the same moment, as a value and as a page of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from koordebpf.decision.node_plan import NodePlan
from koordebpf.policy.detect.verdict import UseEvidence, Verdict
from koordebpf.policy.plan import Balance, Candidate, FeaturePlan, Plan
from koordebpf.printable import page
from koordebpf.report.pages.columns import WIDTH, cut_middle, filled, released_text
from koordebpf.report.pages.plan import dead_man_diff, decisions_diff
from koordebpf.report.sentences import headline, plain_words
from koordebpf.state.amount import MEMORY, unit_of
from koordebpf.state.what_if import Setting

_NAME = 14
_CELL = 12
_MARKS = ("threshold", "lower", "upper")  # of `UseEvidence`
_AMOUNTS = {
    "need": "need",
    "coming back": "pending",
    "from others": "shared",
    "credit": "credit",
    "missing": "missing",
}  # of `Balance`


class PodChange(msgspec.Struct, frozen=True):
    """What becomes of one pod under either settings; `candidate` is it as ranked where it is evicted."""

    candidate: Candidate
    gives: str  # of what is short there
    before: str
    after: str


class FeatureSide(msgspec.Struct, frozen=True):
    """One feature's decision under one of the settings, in numbers. `evidence` None: it was not judged by its use."""

    fires: bool
    skipped: str | None
    evidence: UseEvidence | None
    balance: Balance
    candidates: int
    victims: tuple[str, ...]  # uids, in order
    reason: str


class FeatureDiff(msgspec.Struct, frozen=True):
    """One feature under both settings; None: it is not in that plan, because its gate is off."""

    feature: str
    before: FeatureSide | None
    after: FeatureSide | None


class PlanDiff(msgspec.Struct, frozen=True, kw_only=True):
    """What `plan --diff` prints. `gained` and `lost` are victims of one plan only; `moved` go for another feature."""

    schema: Literal["koordebpf.plan-diff/v2"] = "koordebpf.plan-diff/v2"
    settings: tuple[Setting, ...]
    gained: tuple[PodChange, ...]
    lost: tuple[PodChange, ...]
    moved: tuple[PodChange, ...]
    features: tuple[FeatureDiff, ...]
    before: NodePlan
    after: NodePlan


def plan_diff(before: NodePlan, after: NodePlan, settings: tuple[Setting, ...] = ()) -> PlanDiff:
    """Compare two plans; victims in the order in which they go."""
    was, is_now = _going(before), _going(after)
    changes = {
        uid: PodChange(victim, released_text(victim, verdict), _fate(before, uid), _fate(after, uid))
        for uid, (verdict, victim) in {**was, **is_now}.items()
    }  # fmt: skip
    names = dict.fromkeys(feature.verdict.feature for plan in (before, after) for feature in plan.features)
    return PlanDiff(
        settings=settings,
        gained=tuple(changes[uid] for uid in is_now if uid not in was),
        lost=tuple(changes[uid] for uid in was if uid not in is_now),
        moved=tuple(
            changes[uid]
            for uid, (verdict, _) in is_now.items()
            if uid in was and was[uid][0].feature != verdict.feature
        ),
        features=tuple(FeatureDiff(name, _side(before, name), _side(after, name)) for name in names),
        before=before,
        after=after,
    )


def _going(plan: Plan) -> dict[str, tuple[Verdict, Candidate]]:
    return {
        victim.candidate.uid: (feature.verdict, victim.candidate)
        for feature in plan.features
        for victim in feature.victims
    }


def _fate(plan: Plan, uid: str) -> str:
    stays = ""
    for feature in plan.features:
        name = feature.verdict.feature
        if any(victim.candidate.uid == uid for victim in feature.victims):
            return f"evicted for {name}"
        ranked = next((each for each in feature.candidates if each.uid == uid), None)
        excluded = next((each for each in feature.excluded if each.uid == uid), None)
        if ranked is not None:
            stays = stays or f"stays, rank {ranked.rank} of {len(feature.candidates)}"
        elif excluded is not None:
            stays = stays or f"no candidate: {excluded.why}"
    return stays or "stays: no feature ranks a pod"


def _side(plan: Plan, name: str) -> FeatureSide | None:
    feature = next((each for each in plan.features if each.verdict.feature == name), None)
    return None if feature is None else _side_of(feature)


def _side_of(feature: FeaturePlan) -> FeatureSide:
    return FeatureSide(
        fires=feature.verdict.fires,
        skipped=feature.verdict.skipped,
        evidence=feature.verdict.evidence,
        balance=feature.balance,
        candidates=len(feature.candidates),
        victims=tuple(victim.candidate.uid for victim in feature.victims),
        reason=feature.reason,
    )


def diff_page(diff: PlanDiff) -> str:
    """Return the settings that differ, both sentences, the victims of one side only, and each number that changes."""
    blocks = [_settings(diff), [*_sentences(diff)], [*_pods(diff)]]
    blocks += [[*_feature(each)] for each in diff.features if each.before != each.after]
    blocks += decisions_diff(diff.before.strategies, diff.after.strategies)
    blocks.append(dead_man_diff(diff.before.dead_man, diff.after.dead_man))
    return "\n\n".join(page(block) for block in blocks if block)


def _settings(diff: PlanDiff) -> list[str]:
    if not diff.settings:
        return ["no setting differs"]
    width = max(len(each.name) for each in diff.settings)
    lines = [f"  {each.name:<{width}}  {_value(each.before)} → {_value(each.after)}" for each in diff.settings]
    return ["settings", *lines]


def _value(value: bool | int | str | None) -> str:
    return "not set" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _sentences(diff: PlanDiff) -> Iterator[str]:
    before, after = headline(diff.before), headline(diff.after)
    if before == after:
        yield from filled(f"before and after: {before}")
        return
    yield from filled(f"before: {before}")
    yield from filled(f"after:  {after}")


def _pods(diff: PlanDiff) -> Iterator[str]:
    changes = [("+", each) for each in diff.gained] + [("-", each) for each in diff.lost]
    changes += [("~", each) for each in diff.moved]
    if not changes:
        both = len(diff.after.victims)
        yield "no eviction, before and after" if both == 0 else "the same pods are evicted"
        return
    yield "+ evicted only after, - only before" + (", ~ for another feature" if diff.moved else "")
    for sign, each in changes:
        pod = each.candidate
        priority = "no priority" if pod.priority is None else f"priority {pod.priority}"
        tail = f" ({priority}, {each.gives})"
        yield f"{sign} {cut_middle(f'{pod.namespace}/{pod.name}', WIDTH - 2 - len(tail))}{tail}"
        yield from filled(f"before: {each.before}", "    ")
        yield from filled(f"after:  {each.after}", "    ")


def _feature(diff: FeatureDiff) -> Iterator[str]:
    yield f"{diff.feature:<{_NAME + 12}}{'before':>{_CELL}}{'after':>{_CELL}}"
    before, after = diff.before, diff.after
    rows = [(name, _mark(before, name), _mark(after, name)) for name in _MARKS]
    rows += [(text, _sum(before, name), _sum(after, name)) for text, name in _AMOUNTS.items()]
    unit = next(unit_of(side.balance.resource) for side in (after, before) if side is not None)
    for text, first, second in rows:
        if (first or 0) != (second or 0):
            yield _row(text, *("-" if each is None else unit.format(each) for each in (first, second)))
    for text, first, second in (
        ("victims", len(before.victims) if before else None, len(after.victims) if after else None),
        ("candidates", before.candidates if before else None, after.candidates if after else None),
    ):
        if (first or 0) != (second or 0):
            yield _row(text, "-" if first is None else str(first), "-" if second is None else str(second))
    if _why(before) != _why(after):
        yield from filled(f"before: {_why(before)}", "  ")
        yield from filled(f"after:  {_why(after)}", "  ")


def _mark(side: FeatureSide | None, name: str) -> int | None:
    mark: int | None = getattr(side.evidence, name, None) if side is not None else None
    return mark


# Without a shortage 0 is shown of memory, and nothing of any other resource.
def _sum(side: FeatureSide | None, name: str) -> int | None:
    if side is None or not (side.fires or side.balance.resource == MEMORY):
        return None
    amount: int = getattr(side.balance, name)
    return amount


def _row(name: str, before: str, after: str) -> str:
    return f"  {name:<{_NAME + 10}}{before:>{_CELL}}{after:>{_CELL}}"


def _why(side: FeatureSide | None) -> str:
    if side is None:
        return "its feature gate is off"
    reason = plain_words(side.reason)
    return f"skipped ({side.skipped}): {reason}" if side.skipped else reason
