"""Everything that `koordebpf trace` prints, as text or as lines of JSON, and the one schema of those lines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from koordebpf.attribution.owner import Owner
from koordebpf.events.records import Totals
from koordebpf.printable import json_bytes, page, with_schema
from koordebpf.report.record_line import RECORD_TYPES, Seen, trace_json, trace_line
from koordebpf.tools.trace.summary import Summary, summary_lines
from koordebpf.units import format_ns

# Rows of /proc/vmstat that tell of pressure; a name that ends with * stands for all that begin so, one for each zone.
VMSTAT = {
    "allocstall_*": "reclaims by tasks, global",
    "pgscan_direct": "pages they looked at",
    "pgsteal_direct": "pages they got",
    "pgscan_kswapd": "pages kswapd looked at",
    "pgsteal_kswapd": "pages it got",
    "pageoutrun": "runs of kswapd",
    "compact_stall": "compactions by tasks",
    "workingset_refault_anon": "pages back from swap soon",
    "workingset_refault_file": "pages read again soon",
    "pswpin": "pages swapped in",
    "pswpout": "pages swapped out",
    "pgmajfault": "faults that waited for I/O",
    "oom_kill": "OOM kills",
}
PROGRAMS = {
    "episodes": "reclaims, limits included",
    "compactions": "compactions by tasks",
    "throttles": "sleeps inside reclaim",
    "memstalls": "psi_memstall sections",
    "oom_kills": "OOM kills",
    "births": "cgroups made",
    "deaths": "cgroups removed",
    "populated": "cgroups filled, emptied",
    "migrations": "tasks that moved",
    "ring_sent": "records sent",
    "ring_lost": "records lost, ring full",
    "begun_full": "stalls not timed",
    "stalls_full": "stalls not counted",
    "unmatched_ends": "ends without a begin",
    "lost_ends": "stalls whose end was lost",
    "missed_runs": "runs of programs missed",
    "ignored": "outside the node, or asked",
}


# Counters of the kernel and of the programs, since boot and since they were attached.


class Counter(msgspec.Struct, frozen=True):
    """One number of /proc/vmstat. None: this kernel has no such row."""

    name: str
    since_boot: int | None
    since_attach: int | None


class Counters(msgspec.Struct, frozen=True, tag="counters", tag_field="kind"):
    """A line of `trace --json --since-boot`. `programs` None: no program counts here.

    `psi_total_us`: some and full of the node's pressure file since boot; None where there is none.
    """

    time: str
    seconds: float  # since the programs were attached
    vmstat: tuple[Counter, ...]
    programs: dict[str, int] | None
    kswapd_wakes: tuple[int, ...] = ()  # since attach, by NUMA node
    kswapd_awake_ns: tuple[int, ...] = ()
    psi_total_us: dict[str, int] | None = None


def vmstat_counters(at_attach: Mapping[str, int], now: Mapping[str, int]) -> tuple[Counter, ...]:
    """Return the rows of pressure out of two readings of /proc/vmstat."""
    found = []
    for name in VMSTAT:
        boot, attach = _row(now, name), _row(at_attach, name)
        found.append(Counter(name, boot, None if boot is None or attach is None else boot - attach))
    return tuple(found)


def program_counters(totals: Totals | None) -> dict[str, int] | None:
    """Return what the programs count, by name."""
    return None if totals is None else {name: int(getattr(totals, name)) for name in PROGRAMS}


def counters_lines(counters: Counters) -> list[str]:
    """Return the two tables, at most 80 columns wide."""
    lines = [f"{'/proc/vmstat':<24} {'SINCE BOOT':>14} {'SINCE ATTACH':>12}"]
    for each in counters.vmstat:
        numbers = f"{_number(each.since_boot):>14} {_number(each.since_attach):>12}"
        lines.append(f"{each.name:<24} {numbers}  {VMSTAT[each.name]}")
    for line, total_us in (counters.psi_total_us or {}).items():
        lines.append(f"{f'PSI {line}':<24} {format_ns(total_us * 1000):>14} {'':>12}  time lost to memory")
    lines += ["", f"{'the programs':<24} {'':>14} {'SINCE ATTACH':>12}  {counters.seconds:.1f} s ago"]
    if counters.programs is None:
        return [*lines, "none could be loaded: koordebpf doctor says why"]
    for name, count in counters.programs.items():
        lines.append(f"{name:<24} {'':>14} {count:>12}  {PROGRAMS[name]}")
    for nid, (wakes, awake_ns) in enumerate(zip(counters.kswapd_wakes, counters.kswapd_awake_ns, strict=True)):
        if wakes or awake_ns:
            lines.append(f"{f'kswapd, NUMA node {nid}':<24} {'':>14} {wakes:>12}  wakes, {format_ns(awake_ns)} awake")
    return lines


def _row(vmstat: Mapping[str, int], name: str) -> int | None:
    if not name.endswith("*"):
        return vmstat.get(name)
    rows = [count for each, count in vmstat.items() if each.startswith(name[:-1])]
    return sum(rows) if rows else None


def _number(n: int | None) -> str:
    return "-" if n is None else str(n)


TraceOutput = list[Seen] | Summary | Counters


# The lines.


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
