"""Plans and audit records of version 1 as they are today, for one release.

Recordings have such plans, and so has the run directory of an agent that is replaced. In version 1 memory and CPU had
keys of their own, with the unit in their names, and every other resource stood under `other`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from koordebpf.decision.decide_tick import CarriedOut, TickDecision
from koordebpf.policy.evict.all_features import RESOURCE_OF
from koordebpf.policy.plan import Plan, Victim
from koordebpf.state.amount import BE_REQUESTED_CPU, CPU, MEMORY, Dimension, Resource, dimension
from koordebpf.store.audit_record import AuditRecord

AUDIT_V1 = b'"schema":"koordebpf.audit/v1"'
_DECISION_V1 = b'{"carried":'  # its keys were sorted
_AMOUNTS = ("need", "pending", "shared", "credit", "missing")
_HOLDINGS = ("used_bytes", "credit_bytes", "request_resource", "request_bytes", "cpu", "others")
_BY_RESOURCE = ("need_bytes", "koordinator_need_bytes", "cpu", "cpu_needs", "other")

Json = Mapping[str, Any]


def decision_of_today(raw: bytes) -> bytes:
    """Return the JSON of a round's decision, of version 1 too, as `encode_decision` makes it.

    Raises:  msgspec.DecodeError: it is none.
    """
    if not raw.startswith(_DECISION_V1):
        return raw
    made = msgspec.json.decode(raw)
    with _decode_errors():
        if (carried := made["carried"]) is not None:
            screening = carried["screening"]
            carried["plan"] = _plan(carried["plan"])
            screening["allowed"] = [_victim(each) for each in screening["allowed"]]
            screening["held"] = [(_victim(each), guard) for each, guard in screening["held"]]
            made["carried"] = {name: carried[name] for name in CarriedOut.__struct_fields__}
        made["plan"] = _plan(made["plan"])
        return msgspec.json.encode({name: made[name] for name in TickDecision.__struct_fields__})


def record_of_today(record: Json) -> AuditRecord:
    """Return the audit record of JSON of version 1.

    Raises:  msgspec.DecodeError: it is none.
    """
    with _decode_errors():
        features = [feature_of_today(each) for each in record["features"]]
        return msgspec.convert({**record, "schema": "koordebpf.audit/v2", "features": features}, AuditRecord)


@contextmanager
def _decode_errors() -> Iterator[None]:
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise msgspec.ValidationError(f"it is nothing of version 1: {error!r}") from error


def _plan(plan: Json) -> Plan:
    return msgspec.convert({**plan, "features": [feature_of_today(each) for each in plan["features"]]}, Plan)


def _victim(victim: Json) -> Victim:
    return msgspec.convert({**victim, "candidate": candidate_of_today(victim["candidate"])}, Victim)


def feature_of_today(feature: Json) -> dict[str, Any]:
    """Return the JSON of one feature of a plan or an audit record as it is today."""
    found = _without(feature, (*(f"{name}_bytes" for name in _AMOUNTS), "cpu", "other"))
    found |= {"verdict": verdict_of_today(feature["verdict"]), "balance": _balance(feature)}
    if "ranking" in feature:  # of an audit record: victims are UIDs, and candidates a number
        return found | {"ranking": list(map(candidate_of_today, feature["ranking"]))}
    victims = [{**each, "candidate": candidate_of_today(each["candidate"])} for each in feature["victims"]]
    return found | {"candidates": list(map(candidate_of_today, feature["candidates"])), "victims": victims}


# Where nothing was judged the feature's name says of which resource it is.
def _balance(feature: Json) -> Json:
    if other := feature.get("other"):
        return _without(other, ("unit",))
    if cpu := feature.get("cpu"):
        return {"resource": CPU, **_bare(cpu)}
    resource = RESOURCE_OF.get(feature["verdict"]["feature"], MEMORY)
    return {"resource": resource, **{name: feature.get(f"{name}_bytes", 0) for name in _AMOUNTS}}


def verdict_of_today(verdict: Json) -> dict[str, Any]:
    """Return the JSON of a verdict as it is today."""
    of, use = MEMORY, None
    if memory := verdict.get("evidence"):
        use = _bare(memory)
        use["of"] = use.pop("capacity")
    elif cpu := verdict.get("cpu"):
        of, use = CPU, _bare(cpu)
        use["now"] = use["now"] and _bare(use["now"])
    needs = [_need(each, MEMORY) for each in verdict.get("needs", ())]
    needs += [_need(each, CPU) for each in verdict.get("cpu_needs", ())]
    if other := verdict.get("other"):
        of, use = Resource(other["resource"]), other["use"]
        for each in other["needs"]:
            counted = Dimension(each["dimension"], of, each["is_use"])
            needs.append({**_without(each, ("is_use",)), "dimension": msgspec.to_builtins(counted)})
    has_compared = verdict["fires"] and verdict.get("stall") is None and bool(verdict.get("needs"))
    return _without(verdict, _BY_RESOURCE) | {
        "evidence": use and {"resource": of, **use},
        "needs": needs,
        "koordinator_need": verdict["koordinator_need_bytes"] if has_compared else None,
    }


# A line may be of another version, whose dimensions are not known here.
def _need(need: Json, of: Resource) -> dict[str, Any]:
    name = need["resource"]
    try:
        counted = dimension(name)
    except KeyError:
        counted = Dimension(name, of)
    return {"dimension": msgspec.to_builtins(counted), **_without(_bare(need), ("resource",))}


def candidate_of_today(candidate: Json) -> dict[str, Any]:
    """Return the JSON of a candidate as it is today."""
    return _without(candidate, _HOLDINGS) | {"holdings": list(_holdings(candidate))}


def _holdings(candidate: Json) -> Iterator[Json]:
    used, released, asked, requested, cpu, others = (candidate.get(name) for name in _HOLDINGS)
    yield {"resource": MEMORY, "used": used, "released": released, "asked": asked or "", "requested": requested or 0}
    if cpu is not None:
        cpu = _bare(cpu)
        amounts = {"used": cpu["used"], "released": cpu["used"] or 0}
        asks = {"asked": cpu["request_resource"], "requested": cpu["request"]}
        yield {"resource": CPU, **amounts, **asks, "others": {BE_REQUESTED_CPU.name: cpu["batch"]}}
    for each in others or ():
        yield _without(each, ("unit",))


# Without the units in the names of fields.
def _bare(fields: Json) -> dict[str, Any]:
    return {name.removesuffix("_bytes").removesuffix("_millicpu"): value for name, value in fields.items()}


def _without(fields: Json, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in names}
