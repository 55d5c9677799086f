"""Run the test folders and add them up: all of it, without arguments.

One process a folder: a crash in one loses only that one, and its threads and forks never meet another's. Those that
use the live kernel run one after the other; beside them, with the lowest priority, nodes in guests, and those that need
nothing (lanes.py), then virtual machines, on one CPU (machines.py). A test of real servers or the live kernel that
fails is tried once more, and named at the end if it passes then; one that needs it twice in a run fails. What a folder
leaves on the machine fails, too (leftovers.py).
`python tests/run.py unit golden` runs only these, and `python tests/run.py tests/unit/test_ledger.py` only this module;
arguments after `--` go to pytest. `--quick` leaves out virtual machines, nodes in guests, the browser, the tests that
are marked `slow`, and the manifests where what renders them is not compiled yet. `--merge` runs what the ledger selects
for this commit of what that leaves out (ledger.py). Where everything ran, a test that no machine runs fails.
A test that is not marked and takes longer than 3 s is run up to three times more; if it takes as long each time, it
fails.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

TESTS = Path(__file__).resolve().parent
sys.path.insert(0, str(TESTS.parent))
from tests import lacking, lanes, ledger, needs, programs, slow  # noqa: E402
from tests.counted import Counted, died, twice  # noqa: E402
from tests.leftovers import Watched  # noqa: E402
from tests.machines import Machines  # noqa: E402

REPORTS = TESTS.parent / ".make" / "tests"
COUNTS = REPORTS / "counts.json"
# Folder → what it needs, in the order they run.
FOLDERS = {
    **dict.fromkeys(needs.PURE, "nothing"),
    "contract": "loopback sockets",
    "deploy": "Debian's packages and Go's modules: helm, kustomize and promtool",
    "host": "root and a memory hierarchy: real BPF on this kernel",
    "browser": "Debian's apt: Chromium",
    "cluster": "root, Debian's packages and Go's modules: a real API server, and a real node",
    "node": "root, Debian's packages, Go's modules and QEMU: a node in a virtual machine, with cgroup v2 and systemd",
    "vm": "Debian's apt and QEMU: the host tests in virtual machines, on other kernels",
}
# pytest's arguments where a test fails once in ten thousand because this machine did something else meanwhile. Of more
# than a handful each is a failure.
AGAIN = f"@{TESTS / 'again.txt'}"
_TRIED_AGAIN = {needs.ROOT, needs.API, needs.KUBELET, needs.MACHINE}  # and what waits for sockets
# Two thirds of their time they wait for a socket. Those of a module share what they started.
_IN_PARALLEL = {"contract": ["--numprocesses=3", "--dist=loadfile"]}
# The longest first.
_ORDER = (
    *("host", "cluster", "browser", "node", "contract"),
    *("unit", "deploy", "properties", "scenarios", "strategies", "jobs", "trees", "golden"),
)
_WHOLE = ("browser", "node")  # a quick run has none of their tests
# What .ci/setup brings → the folder whose tests use it.
_SET_UP = {"vm": "vm", "cluster": "cluster", "node": "node", "browser": "browser", "shells": "contract", "felt": "host"}
_NO_TESTS_COLLECTED = 5  # pytest.ExitCode
_TEST_S = 900  # a test that takes longer waits for ever
# A longer run for a merge is interrupted and prints which tests ran; the limit of a CI job would only end it.
_RUN_S = int(os.environ.get("KOORDEBPF_RUN_S", "2700"))


def run_folder(folder: str, arguments: Sequence[str], modules: Sequence[str] = (), *, brings: bool = True) -> Counted:
    """Run one folder's tests, or some modules of it, after what brings what they need."""
    lane = lane_of(folder, arguments, modules, needs.of_folder(folder))
    if brings and lane.brings and (code := subprocess.run(lane.brings, cwd=TESTS.parent, check=False).returncode):
        return _not_brought(folder, code)
    lane.report.unlink(missing_ok=True)
    watched = Watched(lane.report, lane.environment)
    code = watched.run(lane.command, TESTS.parent)
    return _counted_with_left(folder, lane.report, code, watched)


def run_lanes(
    arguments: Mapping[str, Sequence[str]],
    modules: Mapping[str, Sequence[str]],
    when_only_live: Callable[[], None],
    total: Counted,
) -> None:
    """Run folders side by side, each with its arguments; when one has ended print what it printed, and add it up."""
    color = ["--color=yes"] if sys.stdout.isatty() else []
    chosen = [
        lane_of(folder, [*color, *arguments[folder]], part, need)
        for folder in sorted(arguments, key=_ORDER.index)
        for need, part in _parts(folder, modules[folder])
    ]

    def ended(lane: lanes.Lane, code: int) -> None:
        print(f"\n-- {lane.name}\n{lane.output.read_text(errors='replace')}", end="", flush=True)
        total.add(
            _counted_with_left(lane.name, lane.report, code, lane.watched)
            if lane.watched
            else _not_brought(lane.name, code)
        )

    lanes.run(chosen, ended, when_only_live)


def _parts(folder: str, modules: Sequence[str]) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield what a folder's tests need, or those of some modules, each with the modules; none: all of the folder."""
    found: dict[str, list[str]] = {}
    for path in [TESTS.parent / module for module in modules] or sorted((TESTS / folder).rglob("test_*.py")):
        found.setdefault(needs.of_module(path), []).append(path.relative_to(TESTS.parent).as_posix())
    for need, part in found.items():
        yield need, part if len(found) > 1 else modules


def lane_of(folder: str, arguments: Sequence[str], modules: Sequence[str], need: str) -> lanes.Lane:
    """Return how the tests of a folder are run, or some modules of it."""
    name = folder if need == needs.of_folder(folder) else f"{folder}-{need}"
    report = REPORTS / f"{name}.xml"
    brought = programs.of_folder(folder, modules, quick=f"not {slow.MARK}" in arguments)
    return lanes.Lane(
        name,
        _command(folder, need, report, [*(modules or [str(TESTS / folder)]), *arguments]),
        report,
        is_live=need in needs.LIVE,
        is_machine=need == needs.MACHINE,
        environment=_bytecode(),
        brings=[sys.executable, "-m", "tests.programs", *brought] if brought else [],
    )


def _not_brought(folder: str, code: int) -> Counted:
    return died(f"{folder}: what it needs could not be brought: tests.programs ended with {code}")


# Not for what is installed or built before the tests: pip would put there what it compiles for others, too.
def _bytecode() -> dict[str, str]:
    if not os.environ.get("PYTHONDONTWRITEBYTECODE"):
        return {}
    # None in the checkout then; but of hundreds of processes not each is to compile the package.
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(REPORTS.with_name("bytecode"))}


def _command(folder: str, need: str, report: Path, arguments: Sequence[str]) -> list[str]:
    again = [AGAIN] if need in _TRIED_AGAIN or folder == "contract" else []
    # A test's own time: what its fixture sets up for others, too, is not why it takes long (slow.py).
    options = [f"--junitxml={report}", "--override-ini=junit_duration_report=call", f"--timeout={_TEST_S}"]
    options += [*again, *_IN_PARALLEL.get(folder, [])]
    # Where a test takes minutes, its name is printed when it begins.
    options += ["-v" if need == needs.MACHINE else "-q"]
    return [sys.executable, "-m", "pytest", *options, *arguments]


def _counted_with_left(folder: str, report: Path, code: int, watched: Watched) -> Counted:
    counted = _counted(folder, report, code)
    left = [f"{folder}: left behind: {what}" for what in watched.left()]
    counted.add(Counted(failed=len(left), names=left, reports=[report]))
    return counted


def _counted(folder: str, report: Path, code: int) -> Counted:
    if code == _NO_TESTS_COLLECTED:
        return Counted()
    try:
        suite = ET.parse(report).getroot()[0]
    except (OSError, ET.ParseError, IndexError):
        # It died before it could report.
        return died(f"{folder}: pytest ended with {code} and no report")
    failed = int(suite.attrib["failures"]) + int(suite.attrib["errors"])
    skipped = int(suite.attrib["skipped"])
    passed = int(suite.attrib["tests"]) - failed - skipped
    cases = list(suite.iter("testcase"))
    names = [
        _name(folder, case) for case in cases if case.find("failure") is not None or case.find("error") is not None
    ]
    again = {_name(folder, case): _property(case, "cause") for case in cases if _property(case, "tries")}
    unsteady = {name: cause for name, cause in again.items() if name not in names}
    if code and not failed:  # usage errors and interruptions fail no test
        failed, names = 1, [f"{folder}: pytest ended with {code}"]
    return Counted(passed, failed, skipped, names, unsteady, _items(folder, cases))


# The modules with tests of which only some runs have each, where none failed and not all were skipped.
def _items(folder: str, cases: Sequence[ET.Element]) -> dict[str, float]:
    modules: dict[str, list[ET.Element]] = {}
    for case in cases:
        if folder in _WHOLE or _property(case, slow.MARK):
            modules.setdefault(slow.node_of(case).partition("::")[0], []).append(case)
    return {
        module: sum(float(_property(case, "spent") or 0) for case in found)
        for module, found in modules.items()
        if not any(case.find(what) is not None for case in found for what in ("failure", "error"))
        and any(case.find("skipped") is None for case in found)
    }


def _property(case: ET.Element, name: str) -> str:
    found = case.find(f"properties/property[@name='{name}']")
    return "" if found is None else found.attrib["value"]


def _name(folder: str, case: ET.Element) -> str:
    return f"{folder}: {case.attrib['classname'].rpartition('.')[2]}::{case.attrib['name']}"


def judge_second_tries(total: Counted) -> None:
    """Write down what passed and what needed a second try (ledger.py); what needed it twice in this run has failed."""
    failed = [f"needed a second try twice: {name}" for name in twice(total.unsteady)]
    total.add(Counted(failed=len(failed), names=failed))
    if total.unsteady or total.items:
        try:
            ledger.record(total.items, total.unsteady, total.in_machines)
        except OSError as error:
            print(f"{ledger.runs_file()}: {error.strerror}: what passed and was tried again is not written down")


def judge_slow(total: Counted) -> None:
    """Add what takes long without the mark `slow`, or fails when that is tried; in a virtual machine all takes long."""
    found, failed = slow.unmarked([report for report in total.reports if report.stem != "node"], TESTS)
    names = [f"takes longer than {slow.LIMIT_S:g} s and is not marked {slow.MARK}: {name}" for name in found]
    names += [f"passed, and failed when it was run once more: {name}" for name in failed]
    total.add(Counted(failed=len(names), names=names))


def judge_all(total: Counted) -> None:
    """Add, after a run of everything, the tests that no machine runs, and what the ledger says never passed."""
    from tests.vm import nowhere

    never, found = ledger.never_passed(), nowhere.of_run(REPORTS / "host.xml")
    names = [*(f"no machine runs: {node}" for node in found), *(f"never passed: {item}" for item in never)]
    total.add(Counted(failed=len(names), names=names))


def main(arguments: list[str]) -> int:
    """Run the folders named, or all; print the total; return the exit code."""
    asked = _asked(arguments)
    REPORTS.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # Whatever a shell starts in its background ignores SIGINT, and so would all that is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"after {_RUN_S} s not all tests have ended: see above what ran"))
    signal.alarm(_RUN_S if asked.quick or asked.merge else 0)
    if lacking.what_host_lacks() is None:
        # A host test that would skip here fails: see tests/conftest.py.
        os.environ.setdefault("KOORDEBPF_REQUIRE", "host,cluster,node")
    started_s = time.monotonic()
    missing = _missing(quick=asked.quick)
    chosen = [folder for folder in asked.folders if missing.get(folder) is None]
    for extra, folder in _SET_UP.items():  # before anything runs: what it misses goes into the same .venv
        if folder in chosen and (extra == "cluster" or not asked.quick):
            subprocess.run([TESTS.parent / ".ci" / "setup", extra], cwd=TESTS.parent, check=False)
    total = Counted()
    try:
        _run_all(asked, chosen, started_s, total)
    finally:  # interrupted after hours, too
        judge_second_tries(total)
    if not asked.for_pytest:
        judge_slow(total)
    if asked.is_everything and chosen == asked.folders:
        judge_all(total)
    print(f"\n{time.monotonic() - started_s:.0f} s in all")
    print(*(f"left out: {each}: {missing[each]}\n" for each in asked.folders if each not in chosen), sep="", end="")
    print(*(f"{line}\n" for line in ledger.second_tries(total.unsteady)), sep="", end="")
    print(*(f"failed: {name}\n" for name in total.names), sep="", end="")
    COUNTS.write_text(json.dumps({"passed": total.passed, "failed": total.failed, "skipped": total.skipped}))
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped")
    return int(total.failed > 0 or total.passed == 0)


def _asked(arguments: list[str]) -> argparse.Namespace:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(
        prog="tests/run.py",
        description="Run test folders, cheapest first; what comes after -- goes to pytest.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "what", nargs="*", metavar="FOLDER|MODULE", help=f"a path, or one of {', '.join(FOLDERS)}; default: all"
    )
    parser.add_argument("--kernels", default="all", help="virtual machines: first, all, or some by name")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--quick", action="store_true", help="without virtual machines and slow tests")
    kind.add_argument("--merge", action="store_true", help="what else the ledger selects for this commit")
    asked = parser.parse_args(arguments[:at])
    asked.for_pytest = arguments[at + 1 :]
    asked.is_everything = not (asked.what or asked.quick or asked.merge or asked.for_pytest or asked.kernels != "all")
    if asked.merge:
        asked.what, asked.kernels = _selected()
    is_all = not (asked.what or asked.merge)
    asked.modules = {folder: [] for folder in FOLDERS if is_all or folder in asked.what}
    for module in asked.what:
        if module not in FOLDERS:
            folder = next((each for each in FOLDERS if module.startswith(f"tests/{each}/")), None)
            if folder is None or not (TESTS.parent / module).is_file():
                parser.error(f"no test folder or module {module}; folders are: {', '.join(FOLDERS)}")
            asked.modules.setdefault(folder, []).append(module)
    asked.folders = [folder for folder in FOLDERS if folder in asked.modules]
    return asked


def _selected() -> tuple[list[str], str]:
    """Print what the ledger selects; return modules, with "vm" where there are machines, and the machines' names."""
    selection, known = ledger.selection(), ledger.read()
    ledger.print_selection(selection, known)
    machines = ledger.longest_first(known, (item for item in selection.all if ledger.is_machine(item)))
    modules = sorted(selection.all - set(machines))
    return modules + ["vm"] * bool(machines), " ".join(item.replace(" ", "-") for item in machines)


def _missing(*, quick: bool) -> dict[str, str | None]:
    """Return why folders cannot run here, by folder; None: they can."""
    return {
        "deploy": lacking.what_quick_deploy_lacks() if quick else lacking.what_deploy_lacks(),
        "host": lacking.what_host_lacks(),
        "browser": "a browser is part of make test-all" if quick else lacking.what_browser_lacks(),
        "cluster": lacking.what_cluster_lacks(),
        "node": "a node in a guest is part of make test-all" if quick else lacking.what_node_lacks(),
        "vm": "other kernels are part of make test-all" if quick else lacking.what_vm_lacks(),
    }


def _run_all(asked: argparse.Namespace, chosen: Sequence[str], started_s: float, total: Counted) -> None:
    machines: Machines | None = None
    arguments = {folder: [*_marks(asked, folder), *asked.for_pytest] for folder in chosen if folder != "vm"}

    def boot() -> None:
        nonlocal machines
        if "vm" in chosen and machines is None:
            machines = Machines(asked.kernels, REPORTS)

    if asked.is_everything:
        os.environ.setdefault("HYPOTHESIS_PROFILE", "thorough")
    try:
        if asked.merge:  # of the folders that need nothing there is little to run first
            boot()
        if len(arguments) > 1 and not asked.for_pytest:
            print(f"\n== {', '.join(arguments)} · side by side", flush=True)
            run_lanes(arguments, asked.modules, boot, total)
            arguments = {}
        else:
            boot()
        for folder, given in arguments.items():
            seconds = time.monotonic() - started_s
            print(f"\n== {folder} · needs {FOLDERS[folder]} · {seconds:.0f} s since the start", flush=True)
            total.add(run_folder(folder, given, asked.modules[folder]))
        if machines:
            print(f"\n== vm · needs {FOLDERS['vm']} · {time.monotonic() - started_s:.0f} s since the start", flush=True)
            total.add(machines.counted())
    finally:
        if machines:
            machines.end()


def _marks(asked: argparse.Namespace, folder: str) -> list[str]:
    if asked.quick:
        return ["-m", f"not {slow.MARK}"]
    return ["-m", slow.MARK] if asked.merge and folder not in _WHOLE else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
