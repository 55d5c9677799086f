"""`python -m tests.vm.table`: the tables of bpf/README.md and docs/qos/README.md, out of results.json.

With --take it first takes into results.json what the machines of the last `make test-kernels` found, which host tests
were skipped here, and what this kernel says and what each program costs on it (root).
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from tests.vm import kills, strategies
from tests.vm.cost import Costs, measure
from tests.vm.guest import Plan
from tests.vm.machine import ROOT
from tests.vm.matrix import MATRIX
from tests.vm.programs import REFUSED, Program, programs, try_all
from tests.vm.skips import Skips, by_module, renewed, skipped_in
from tests.vm.verdict import Verdict, read_tests

RESULTS = Path(__file__).parent / "results.json"
README = ROOT / "bpf" / "README.md"
OF_STRATEGIES = ROOT / "docs" / "qos" / "README.md"
FOUND = ROOT / ".make" / "vm"
_LIVE_REPORT = ROOT / ".make" / "tests" / "host.xml"
_BEGIN, _END = "<!-- made by: python -m tests.vm.table -->\n", "<!-- end of what is made -->\n"


class Facts(msgspec.Struct, frozen=True):
    """What no kernel reports of a program: since which release it loads, what it measures, and who reads it."""

    since: str
    record: str
    reader: str


_HELPS = "the program that ends it"
# 5.8 is what the ring buffer needs; the tracepoints themselves are older, but where a later release is named.
FACTS = {
    "on_cgroup_attach_task": Facts("5.8", "`koord_migration`", "`koordebpf/report/record_line.py`"),
    "on_cgroup_transfer_tasks": Facts("5.8", "`koord_migration`", "`koordebpf/report/record_line.py`"),
    "on_cgroup_mkdir": Facts("5.8", "`koord_cgroup`", "`koordebpf/attribution/index.py`"),
    "on_cgroup_rmdir": Facts("5.8", "`koord_cgroup`", "`koordebpf/attribution/index.py`"),
    "on_cgroup_rename": Facts("5.8", "`koord_cgroup`", "`koordebpf/attribution/index.py`"),
    "on_cgroup_notify_populated": Facts("5.8", "`koord_populated`", "`koordebpf/report/record_line.py`"),
    "on_mm_compaction_begin": Facts("5.8", "when it began", _HELPS),
    "on_mm_compaction_end": Facts("5.8", "`koord_wait`, `koord_stall`", "`koordebpf/collect/node_watch.py`"),
    "on_mm_vmscan_throttled": Facts("5.16", "`koord_wait`, `koord_stall`", "`koordebpf/collect/node_watch.py`"),
    "scan_memcgs": Facts("6.1", "`koord_memcg`, in a mapped array", "`koordebpf/collect/memory/files.py`"),
    "on_psi_memstall_enter": Facts("5.8", "when it began", _HELPS),
    "on_psi_memstall_leave": Facts("5.8", "`koord_wait`, `koord_stall`", "`koordebpf/collect/node_watch.py`"),
    "on_mark_victim": Facts("5.8", "`koord_oom_kill`", "`koordebpf/agent/tick.py`"),
    "on_signal_generate": Facts("5.8", "the victim's task", "`on_mark_victim`, which has it since 6.8"),
    "on_mm_vmscan_direct_reclaim_begin": Facts("5.8", "when it began", _HELPS),
    "on_mm_vmscan_direct_reclaim_end": Facts(
        "5.8", "`koord_reclaim`, `koord_stall`", "`koordebpf/collect/node_watch.py`"
    ),
    "on_mm_vmscan_kswapd_wake": Facts("5.8", "when it woke", _HELPS),
    "on_mm_vmscan_kswapd_sleep": Facts("5.8", "`koord_kswapd`, `koord_totals`", "`koordebpf/collect/node_watch.py`"),
    "on_mm_vmscan_memcg_reclaim_begin": Facts("5.8", "when it began", _HELPS),
    "on_mm_vmscan_memcg_reclaim_end": Facts(
        "5.8", "`koord_reclaim`, `koord_stall`", "`koordebpf/collect/node_watch.py`"
    ),
}


# How a program is attached → what the table has room for. A refusal is shown by its errno.
_SHORT = {
    "BTF tracepoint": "BTF",
    "raw tracepoint": "raw",
    "BPF iterator": "✓",
    "fentry": "fentry",
    "kprobe": "kprobe",
    f"{REFUSED}ENOENT": "absent",
    f"{REFUSED}ESRCH": "absent",  # its BTF has no such type
}


class Machine(msgspec.Struct, frozen=True):
    """One machine of the matrix, as its last run found it."""

    release: str
    programs: dict[str, str]
    # Each part of a strategy, and of kills → by what it works, "" where there is nothing.
    strategies: dict[str, str] = {}
    # None: it has not run all of its tests yet.
    passed: int | None = None
    skipped: int | None = None
    # None: not taken yet.
    skipped_tests: Skips | None = None


class Results(msgspec.Struct, frozen=True):
    """Everything that the tables are made from."""

    live: str  # release
    live_programs: dict[str, str]
    costs: Costs
    machines: dict[str, Machine]
    live_strategies: dict[str, str] = {}
    live_cgroup: str = "v1"
    live_skipped: Skips = {}


def load() -> Results:
    """Return what was found the last time."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=Results)


def take(before: Results | None, *, keeps_costs: bool = False) -> Results:
    """Return the results with what the last runs found in place of what was found before; costs only if asked for.

    Raises:  click.ClickException: a machine had failures: there is nothing to tell of it.
    """
    machines = dict(before.machines) if before else {}
    for variant in MATRIX:
        path = FOUND / variant.folder / "verdict.json"
        if not path.exists():
            continue
        verdict = msgspec.json.decode(path.read_bytes(), type=Verdict)
        plan = msgspec.json.decode((path.parent / "plan.json").read_bytes(), type=Plan)
        known = machines.get(variant.folder)
        if plan.pytest[-len(variant.tests) :] != variant.tests:
            # Only a part of its tests ran, as asked for: of those only the programs are reported.
            counts = (known.passed, known.skipped, known.skipped_tests) if known else (None, None, None)
        elif verdict.count("failed"):
            raise click.ClickException(f"{variant.title} has {verdict.count('failed')} failures: see {path.parent}")
        else:
            counts = (verdict.count("passed"), verdict.count("skipped"), by_module(skipped_in(verdict.tests)))
        if verdict.programs:
            machines[variant.folder] = Machine(verdict.release, verdict.programs, verdict.strategies, *counts)
    ordered = {variant.folder: machines[variant.folder] for variant in MATRIX if variant.folder in machines}
    costs = before.costs if before and keeps_costs else measure()
    version = f"v{find_memory_hierarchy().version}"
    files = strategies.try_all() | kills.try_all()
    skipped = renewed(before.live_skipped if before else {}, read_tests(_LIVE_REPORT))
    return Results(platform.release(), try_all(), costs, ordered, files, version, skipped)


def render(results: Results, every: tuple[Program, ...]) -> str:
    """Return both tables."""
    kernels = {_number(results.live): results.live_programs}
    for folder, machine in results.machines.items():
        if folder.endswith("-v2"):
            kernels[_number(machine.release)] = machine.programs
    columns = sorted(kernels, key=lambda number: [int(part) for part in number.split(".")])
    head = ["program", "attach point", "since", "record", "ns", "read by", *columns]
    lines = [_row(head), "|---" * len(head) + "|"]
    source = ""
    for program in every:
        states = [kernels[column].get(program.name, "?") for column in columns]
        lines.append(_program_row(program, results.costs, states, is_first=program.source != source))
        source = program.source
    head = ["machine", "kernel", "host tests passed", "not for this kind of machine"]
    if any(machine.passed is not None for machine in results.machines.values()):
        lines += ["", _row(head), "|---" * len(head) + "|"]
    for folder, machine in results.machines.items():
        if machine.passed is not None:
            lines.append(
                _row([folder.replace("-", " ", 1), machine.release, str(machine.passed), str(machine.skipped)])
            )
    return "\n".join(lines) + "\n"


def render_strategies(results: Results) -> str:
    """Return two tables: what each strategy finds on each kernel, and what kills do."""
    found = {f"{_number(results.live)} {results.live_cgroup}": results.live_strategies}
    for folder, machine in results.machines.items():
        version = folder.rpartition("-")[2]
        if version in ("v1", "v2"):
            found[f"{_number(machine.release)} {version}"] = machine.strategies
    columns = sorted(found, key=lambda name: [int(part) for part in name.partition(" ")[0].split(".")])
    by_column = {column: found[column] for column in columns}
    return "\n".join(_table(each.rows(by_column)) for each in (strategies, kills))


def _program_row(program: Program, costs: Costs, states: list[str], *, is_first: bool) -> str:
    facts = FACTS[program.name]
    cost = costs.programs.get(program.name)
    return _row([
        f"`{program.source}`" if is_first else "", f"`{program.target}`", facts.since, facts.record,
        f"{cost.ns:,}" if cost else "", facts.reader, *(_SHORT.get(state, state) for state in states),
    ])  # fmt: skip


def _table(rows: Iterable[list[str]]) -> str:
    head, *others = rows
    return "\n".join([_row(head), "|---" * len(head) + "|", *map(_row, others)]) + "\n"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _number(release: str) -> str:
    return ".".join(re.split(r"[.+-]", release)[:2])


def insert(readme: str, tables: str) -> str:
    """Return the text with the tables between its two marks.

    Raises:  click.ClickException: it has no marks.
    """
    before, begin, rest = readme.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise click.ClickException(f"the page must have the two marks {_BEGIN.strip()} and {_END.strip()}")
    return f"{before}{begin}\n{tables}\n{end}{after}"


@click.command(help=__doc__)
@click.option("--take", "is_taking", is_flag=True, help="Take new results first.")
@click.option("--keep-costs", is_flag=True, help="But not what programs cost: the machine is busy.")
def main(is_taking: bool, keep_costs: bool) -> None:
    """Write the tables."""
    if is_taking:
        results = take(load() if RESULTS.exists() else None, keeps_costs=keep_costs)
        RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(results), indent=1) + b"\n")
    README.write_text(insert(README.read_text(), render(load(), programs())))
    OF_STRATEGIES.write_text(insert(OF_STRATEGIES.read_text(), render_strategies(load())))


if __name__ == "__main__":
    main()
