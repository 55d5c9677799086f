"""Everything that `koordebpf trace` prints, as text or as lines of JSON, and the one schema of those lines."""

from __future__ import annotations

from typing import Any

import msgspec

from koordebpf.attribution.owner import Owner
from koordebpf.printable import json_bytes, page, with_schema
from koordebpf.report.trace.counters import Counters, counters_lines
from koordebpf.report.trace.record_line import RECORD_TYPES, Seen, trace_json, trace_line
from koordebpf.report.trace.summary import Summary, summary_lines

TraceOutput = list[Seen] | Summary | Counters


def render_text(item: TraceOutput) -> str:
    """Return it for people, at most 80 columns wide."""
    match item:
        case Summary():
            return page(["", f"until {item.time[11:19]}", *summary_lines(item)])
        case Counters():
            return page(["", *counters_lines(item)])
    return page(trace_line(seen.record, seen.owner, seen.wall) for seen in item)


def render_json(item: TraceOutput) -> bytes:
    """Return it as JSON objects, one a line."""
    if isinstance(item, Summary | Counters):
        return with_schema("trace", json_bytes(item))
    return b"\n".join(trace_json(seen.record, seen.owner, seen.wall) for seen in item)


def trace_schema() -> dict[str, Any]:
    """Return the JSON Schema of a line of `trace --json`; `kind` says which of the objects it is."""
    whole_lines = (Summary, Counters)
    ways, found = msgspec.json.schema_components([*RECORD_TYPES, *whole_lines, Owner], ref_template="#/$defs/{name}")
    definitions: dict[str, Any] = {name: dict(each) for name, each in found.items()}
    for each in RECORD_TYPES:
        definition = definitions[each.__name__]
        definition["properties"] = {
            "time": {"type": "string", "format": "date-time"},
            **definition["properties"],
            "owner": {"anyOf": [{"$ref": "#/$defs/Owner"}, {"type": "null"}]},
        }
        definition["required"] = ["time", *definition["required"], "owner"]
    for each in (*RECORD_TYPES, *whole_lines):
        definition = definitions[each.__name__]
        definition["properties"] = {"schema": {"const": "koordebpf.trace/v1"}, **definition["properties"]}
        definition["required"] = ["schema", *definition.get("required", ())]
    for definition in definitions.values():
        if definition.get("type") == "object":
            definition["additionalProperties"] = False
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of koordebpf trace --json",
        "oneOf": list(ways[:-1]),
        "$defs": definitions,
    }
