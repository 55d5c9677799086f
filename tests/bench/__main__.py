"""`python -m tests.bench [NAME]… [--quick] [--json FILE]`: measure, print the table, write build/bench.json."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from koordebpf.errors import SupportError
from tests.bench.figure import Figure, table
from tests.bench.machine import Machine, describe, this_machine
from tests.bench.report import CannotMeasure, Report

# Name → what it measures; tests/bench/<name>.py has a function of that name. Quick ones first.
_BENCHES = {
    "start": "process start to first event received",
    "tick": "one tick under pressure",
    "kernel_cost": "what the programs add to a reclaim",
    "freeing": "decision to the victim's memory free again",
    "reaction": "threshold crossed to decision sent, beside others",
    "steady": "what the agent costs when nothing happens",
}
_DEFAULT_JSON = Path(__file__).parents[2] / "build" / "bench.json"


class Run(msgspec.Struct, frozen=True):
    """What build/bench.json holds."""

    machine: Machine
    quick: bool
    figures: list[Figure]
    not_measured: list[str]


def main() -> int:
    """Run those that were named, or all; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("name", nargs="*", help="; ".join(f"{name}: {what}" for name, what in _BENCHES.items()))
    parser.add_argument("--quick", action="store_true", help="small n: does it work, roughly how much")
    parser.add_argument("--json", type=Path, default=_DEFAULT_JSON, help=f"default: {_DEFAULT_JSON}")
    given = parser.parse_args()
    if unknown := sorted(set(given.name) - set(_BENCHES)):
        parser.error(f"no benchmark {', '.join(unknown)}; there are: {', '.join(_BENCHES)}")
    machine = this_machine()
    report = Report(quick=given.quick)
    exit_code = 0
    for name in given.name or _BENCHES:
        report.say(f"{name}: {_BENCHES[name]}")
        bench: Callable[[Report], None] = getattr(importlib.import_module(f"tests.bench.{name}"), name)
        try:
            if os.geteuid() != 0:
                raise CannotMeasure("needs root: it makes cgroups and loads programs into the kernel")
            bench(report)
        except (CannotMeasure, SupportError) as error:
            report.cannot(f"{name}: {error}")
        except RuntimeError as error:
            report.cannot(f"{name} went wrong: {error}")
            exit_code = 1
    print(describe(machine))
    if given.quick:
        print("quick: n is too small for a 99th percentile")
    print(table(report.figures))
    for sentence in report.not_measured:
        print(f"not measured here: {sentence}")
    given.json.parent.mkdir(parents=True, exist_ok=True)
    run = Run(machine, given.quick, report.figures, report.not_measured)
    given.json.write_bytes(msgspec.json.format(msgspec.json.encode(run)) + b"\n")
    print(f"written: {given.json}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
