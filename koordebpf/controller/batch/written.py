"""What is written into a Node, as one value: the four resources, and the annotation with the sums before third parties.

It is compared whole: an amount would become stale where only the one beside it is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from koordebpf.controller.batch.facts import batch_amounts
from koordebpf.errors import ConfigError
from koordebpf.kube.colocation.nodes import ColocationNode
from koordebpf.policy.batch.formulas import NodeResult
from koordebpf.policy.batch.zones import Amounts
from koordebpf.quantity import parse_quantity
from koordebpf.slo.overlay import decode_object
from koordebpf.state.pods.requests import BATCH_CPU, BATCH_MEMORY

ORIGIN_ANNOTATION: Final = "node.koordinator.sh/originExtendedAllocatable"
_ORIGIN: Final = {name: f"{ORIGIN_ANNOTATION} {name}" for name in (BATCH_CPU, BATCH_MEMORY)}


def wanted_amounts(result: NodeResult) -> dict[str, int | None]:
    """Return resource → what a Node should have of it; of the annotation's under the annotation's name too."""
    origin = (None, None) if result.reset else (result.origin.cpu_millicpu, result.origin.memory_bytes)
    amounts = {name: each.result for name, each in result.calculations.items()}
    return {**amounts, **dict(zip(_ORIGIN.values(), origin, strict=True))}


def written_amounts(node: ColocationNode, wanted: Amounts) -> dict[str, int | None]:
    """Return what a Node has of `wanted`. Koordinator's manager leaves an annotation of zeros where it wants none."""
    amounts: dict[str, int | None] = dict(batch_amounts(node))
    there = _origin_of(node)
    for name, key in _ORIGIN.items():
        amounts[key] = None if wanted[key] is None and there[name] == 0 else there[name]
    return amounts


def origin_annotation(node: ColocationNode, result: NodeResult) -> dict[str, str | None]:
    """Return the annotation to be set, or to be removed."""
    if result.reset:
        return {ORIGIN_ANNOTATION: None} if ORIGIN_ANNOTATION in (node.annotations or {}) else {}
    resources = {BATCH_CPU: str(result.origin.cpu_millicpu), BATCH_MEMORY: str(result.origin.memory_bytes)}
    return {ORIGIN_ANNOTATION: msgspec.json.encode({"resources": resources}).decode()}


# An amount that cannot be read is none: it is written again.
def _origin_of(node: ColocationNode) -> Mapping[str, int | None]:
    text = (node.annotations or {}).get(ORIGIN_ANNOTATION)
    found: dict[str, int | None] = dict.fromkeys(_ORIGIN)
    if text is None:
        return found
    try:
        resources = decode_object(text, ORIGIN_ANNOTATION).get("resources")
        for name in found:
            found[name] = int(parse_quantity(resources[name])) if isinstance(resources, dict) else None
    except (ConfigError, KeyError):
        return dict.fromkeys(_ORIGIN)
    return found
