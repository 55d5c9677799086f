"""Plans and audit records of version 1 at any place in JSON as those of today, to be compared with them."""

from __future__ import annotations

from typing import Any

from koordebpf.store.previous import candidate_of_today, feature_of_today, verdict_of_today

_SCHEMAS = {f"koordebpf.{name}/v1": f"koordebpf.{name}/v2" for name in ("audit", "plan", "replayed-plan", "plan-diff")}


def as_today(value: Any) -> Any:
    """Return JSON with plans of today, whichever version it has."""
    if isinstance(value, list):
        return [as_today(each) for each in value]
    if not isinstance(value, dict):
        return _SCHEMAS.get(value, value) if isinstance(value, str) else value
    if "verdict" in value and "balance" not in value:
        value = feature_of_today(value)
    elif "koordinator_need_bytes" in value:
        value = verdict_of_today(value)
    elif "koordinator_credit_bytes" in value and "holdings" not in value:
        value = candidate_of_today(value)
    return {key: as_today(each) for key, each in value.items()}


def without_defaults(value: Any) -> Any:
    """Return JSON without fields that are null, empty, zero or false: today's leaves some of them out."""
    if isinstance(value, list):
        return [without_defaults(each) for each in value]
    if not isinstance(value, dict):
        return value
    found = {key: without_defaults(each) for key, each in value.items()}
    return {key: each for key, each in found.items() if each}
