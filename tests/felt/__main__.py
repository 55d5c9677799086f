"""`python -m tests.felt [--apps redis] [--hogs anon,cpu] [--ways nothing,all]`: run cells, print the table (root)."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from koordebpf.errors import SupportError
from tests.bench.machine import Machine, describe, this_machine
from tests.bench.report import CannotMeasure
from tests.felt.cells import Found, markdown, short, sums
from tests.felt.load.apps import APPS
from tests.felt.load.hogs import HOGS, WHAT
from tests.felt.matrix import Matrix, Plan
from tests.felt.swap import SWAPS, swap
from tests.felt.ways import WAYS

_JSON = Path(__file__).parents[2] / "build" / "felt.json"
_DEFAULT_WAYS = ("nothing", "kubelet", "default", "all")


class Run(msgspec.Struct, frozen=True):
    """What build/felt.json holds."""

    machine: Machine
    seconds: float
    load: tuple[float, float, float]
    found: list[Found]
    swap: str = "none"


def main() -> int:
    """Run the matrix; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.felt", description=__doc__)
    parser.add_argument("--apps", default=",".join(APPS), help="default: %(default)s")
    parser.add_argument("--hogs", default=",".join(HOGS), help="; ".join(f"{n}: {what}" for n, what in WHAT.items()))
    parser.add_argument("--ways", default=",".join(_DEFAULT_WAYS), help=f"of {', '.join(WAYS)}")
    parser.add_argument("--repeats", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=3.0, help="of a cell; default: %(default)s")
    parser.add_argument("--swap", choices=SWAPS, default="none", help="2 GiB for the machine; default: %(default)s")
    parser.add_argument("--json", type=Path, default=_JSON, help=f"default: {_JSON}")
    parser.add_argument("--table", type=Path, nargs="+", metavar="FILE", help="only print the tables of such files")
    given = parser.parse_args()
    if given.table:
        _show(*(msgspec.json.decode(path.read_bytes(), type=Run) for path in given.table))
        return 0
    apps, hogs = _chosen(parser, given.apps, APPS), _chosen(parser, given.hogs, HOGS)
    ways = [WAYS[name] for name in _chosen(parser, given.ways, WAYS)]
    if os.geteuid() != 0:
        parser.error("needs root: it makes cgroups, a loop device and loads programs into the kernel")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what it made is removed
    machine, load = this_machine(), os.getloadavg()
    started, exit_code, found = time.monotonic(), 0, list[Found]()
    plans = [Plan(app, hogs, ways) for app in apps]
    count = sum(plan.count() for plan in plans) * given.repeats

    def say(text: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s  {len(found) + 1}/{count}  {text}", file=sys.stderr, flush=True)

    try:
        for plan in plans:
            try:
                with swap(given.swap), Matrix(plan.app, given.seconds, say) as matrix:
                    for each in matrix.run(plan, given.repeats):
                        found.append(each)
            except (CannotMeasure, SupportError) as error:
                print(f"{plan.app}: not measured: {error}", file=sys.stderr)
                exit_code = 1
    finally:  # also of a run that is interrupted
        run = Run(machine, given.seconds, load, found, given.swap)
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_bytes(msgspec.json.format(msgspec.json.encode(run)) + b"\n")
        _show(run)
    return exit_code


def _chosen(parser: argparse.ArgumentParser, text: str, known: Sequence[str] | dict[str, object]) -> list[str]:
    names = [name for name in text.split(",") if name]
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    return names


def _show(*runs: Run) -> None:
    for run in runs:
        print(describe(run.machine))
        print(f"cells of {run.seconds:g} s; load average at the start {run.load[0]:.1f}; swap: {run.swap}")
    rows = sums([each for run in runs for each in run.found])
    print(f"\n{markdown(rows)}\n\n{short(rows)}")


if __name__ == "__main__":
    sys.exit(main())
