"""What `koordebpf plan --diff --json` prints, and its schema."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from koordebpf.report.pages import plan_diff as page
from koordebpf.state.amount import CPU, MEMORY
from koordebpf.state.what_if import Setting
from koordebpf.store.v1 import types as v1
from koordebpf.store.v1.encode import (
    bytes_of,
    candidate_json,
    cpu_balance_json,
    cpu_use_json,
    node_plan_json,
    other_balance_json,
)


class PodChange(msgspec.Struct, frozen=True):
    """What becomes of one pod under either settings; `candidate` is it as ranked where it is evicted."""

    candidate: v1.Candidate
    gives: str  # of what is short there
    before: str
    after: str


class FeatureSide(msgspec.Struct, frozen=True):
    """One feature's decision under one of the settings, in numbers. Bytes; `threshold_bytes` None: not judged."""

    fires: bool
    skipped: str | None
    threshold_bytes: int | None
    lower_bytes: int | None
    need_bytes: int
    pending_bytes: int
    shared_bytes: int
    credit_bytes: int
    missing_bytes: int
    candidates: int
    victims: tuple[str, ...]  # uids, in order
    reason: str
    cpu: v1.CpuAmounts | None  # of a feature that judges CPU, in place of the bytes
    cpu_evidence: v1.CpuEvidence | None = None  # its marks among them
    other: v1.OtherBalance | msgspec.UnsetType = msgspec.UNSET  # neither memory nor CPU


class FeatureDiff(msgspec.Struct, frozen=True):
    """One feature under both settings; None: it is not in that plan, because its gate is off."""

    feature: str
    before: FeatureSide | None
    after: FeatureSide | None


class PlanDiff(msgspec.Struct, frozen=True):
    """What `plan --diff` prints. `gained` and `lost` are victims of one plan only; `moved` go for another feature."""

    schema: Literal["koordebpf.plan-diff/v1"]
    settings: tuple[Setting, ...]
    gained: tuple[PodChange, ...]
    lost: tuple[PodChange, ...]
    moved: tuple[PodChange, ...]
    features: tuple[FeatureDiff, ...]
    before: v1.NodePlan
    after: v1.NodePlan


def plan_diff_json(diff: page.PlanDiff) -> PlanDiff:
    """Return two plans and what differs as their JSON has it."""
    gained, lost, moved = (tuple(map(_change, each)) for each in (diff.gained, diff.lost, diff.moved))
    return PlanDiff(
        schema="koordebpf.plan-diff/v1",
        settings=diff.settings,
        gained=gained,
        lost=lost,
        moved=moved,
        features=tuple(FeatureDiff(each.feature, _side(each.before), _side(each.after)) for each in diff.features),
        before=node_plan_json(diff.before),
        after=node_plan_json(diff.after),
    )


def plan_diff_schema() -> dict[str, Any]:
    """Return the JSON Schema of `plan --diff --json`."""
    return msgspec.json.schema(PlanDiff)


def _change(change: page.PodChange) -> PodChange:
    return PodChange(candidate_json(change.candidate), change.gives, change.before, change.after)


def _side(side: page.FeatureSide | None) -> FeatureSide | None:
    if side is None:
        return None
    use, sums = side.evidence, bytes_of(side.balance)
    is_memory = use is not None and use.resource == MEMORY
    return FeatureSide(
        fires=side.fires,
        skipped=side.skipped,
        threshold_bytes=use.threshold if use is not None and is_memory else None,
        lower_bytes=use.lower if use is not None and is_memory else None,
        need_bytes=sums.need,
        pending_bytes=sums.pending,
        shared_bytes=sums.shared,
        credit_bytes=sums.credit,
        missing_bytes=sums.missing,
        candidates=side.candidates,
        victims=side.victims,
        reason=side.reason,
        cpu=cpu_balance_json(side.balance, fires=side.fires),
        cpu_evidence=cpu_use_json(use) if use is not None and use.resource == CPU else None,
        other=other_balance_json(side.balance),
    )
