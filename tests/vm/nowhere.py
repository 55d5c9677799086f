"""`python -m tests.vm.nowhere [REPORT]`: the host tests that neither this kernel nor any virtual machine runs.

REPORT is the junit.xml of a run of the host tests; without it, it is the last one that `tests.vm.table --take` took.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import click
import msgspec

from tests.vm.matrix import MATRIX
from tests.vm.skips import nodes_of, nowhere, skipped_in
from tests.vm.table import FOUND, Results, load
from tests.vm.verdict import Verdict, read_tests


def of_results(results: Results, skipped: Iterable[str]) -> list[str]:
    """Return which of these tests no machine of the matrix runs. One that was not asked yet skips none of its tests."""
    there = {folder: set(nodes_of(machine.skipped_tests or {})) for folder, machine in results.machines.items()}
    return nowhere(skipped, {variant.folder: variant.tests for variant in MATRIX}, there)


def of_run(report: Path) -> list[str]:
    """Return which of the tests that a report has as skipped no machine ran, by what the last run of each found."""
    found = {variant.folder: FOUND / variant.folder / "verdict.json" for variant in MATRIX}
    verdicts = {
        name: msgspec.json.decode(path.read_bytes(), type=Verdict) for name, path in found.items() if path.exists()
    }
    there = {name: skipped_in(verdict.tests) for name, verdict in verdicts.items()}
    tests = {variant.folder: variant.tests for variant in MATRIX if variant.folder in verdicts}
    return nowhere(skipped_in(read_tests(report)), tests, there)


@click.command(help=__doc__)
@click.argument("report", required=False, type=click.Path(exists=True, path_type=Path))
def main(report: Path | None) -> None:
    """Print them; the exit code is 1 if there are any."""
    results = load()
    skipped = skipped_in(read_tests(report)) if report else nodes_of(results.live_skipped)
    found = of_results(results, skipped)
    print(*(f"no machine runs: {node}" for node in found), f"{len(skipped)} skipped here", sep="\n")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
