"""Run the test folders and add them up.

One process a folder: a crash in one loses only that one, and its threads and forks never meet another's. Those that
use the live kernel run one after the other, and beside them those that need nothing (lanes.py); then virtual machines,
on one CPU, with the lowest priority (machines.py). `--kernels all` boots every machine, not only the first, and
runs the stories of tests/node. With KOORDEBPF_COVERAGE what those that need nothing reach is measured (cover.py).
A test of real servers or the live kernel that fails is tried once more, and named at the end if it passes then; one
that needs it twice in a run fails. What a folder leaves on the machine fails, too (leftovers.py).
`python tests/run.py unit golden` runs only these; arguments after `--` go to pytest. `--quick` leaves out the virtual
machines, the tests that are marked `slow`, and the manifests where what renders them is not compiled yet.
A test that is not marked and takes longer than 3 s is run up to three times more; if it takes as long each time, it
fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

TESTS = Path(__file__).resolve().parent
sys.path.insert(0, str(TESTS.parent))
from tests import cover, lanes, ledger, programs, slow, time_limit  # noqa: E402
from tests.counted import Counted, died, twice  # noqa: E402
from tests.leftovers import Watched  # noqa: E402
from tests.machines import Machines  # noqa: E402

REPORTS = TESTS.parent / ".make" / "tests"
COUNTS = REPORTS / "counts.json"
# Folder → what it needs, in the order they run.
FOLDERS = {
    "unit": "nothing",
    "trees": "nothing",
    "golden": "nothing",
    "properties": "nothing",
    "scenarios": "nothing",
    "contract": "loopback sockets",
    "deploy": "Debian's packages and Go's modules: helm, kustomize and promtool",
    "host": "root and a memory hierarchy: real BPF on this kernel",
    "browser": "Debian's apt: Chromium",
    "cluster": "root, Debian's packages and Go's modules: a real API server, and a real node",
    "node": "root, Debian's packages, Go's modules and QEMU: a node in a virtual machine, with cgroup v2 and systemd",
    "vm": "Debian's apt and QEMU: the host tests in virtual machines, on other kernels",
}
_ONLY_BY_NAME = {"node"}  # it takes half an hour of an emulated CPU; with every kernel its stories run, too
# pytest's arguments where a test fails once in ten thousand because this machine did something else meanwhile. Of more
# than a handful each is a failure.
AGAIN = f"@{TESTS / 'again.txt'}"
_LIVE = {"contract", "host", "cluster", "node"}
_ON_THIS_KERNEL = ("host", "cluster", "browser", "node")  # one at a time
# Two thirds of their time they wait for a socket. Those of a module share what they started.
_IN_PARALLEL = {"contract": ["--numprocesses=3", "--dist=loadfile"]}
_TRIED_AGAIN = _LIVE | {"vm"}
_NEEDS_NOTHING = ("unit", "properties", "trees", "golden", "scenarios")
_ORDER = (*_ON_THIS_KERNEL, "contract", *_NEEDS_NOTHING, "deploy")  # the longest first
_NO_TESTS_COLLECTED = 5  # pytest.ExitCode
_TEST_S = 900  # a test that takes longer waits for ever


def has_memory_hierarchy() -> bool:
    """Tell whether a memory controller is mounted, on v1 or v2."""
    v2 = Path("/sys/fs/cgroup/cgroup.controllers")
    if v2.exists() and "memory" in v2.read_text().split():
        return True
    return any(
        line.split()[2] == "cgroup" and "memory" in line.split()[3].split(",")
        for line in Path("/proc/mounts").read_text().splitlines()
    )


def what_host_lacks() -> str | None:
    """Return why the host tests cannot run here and what to do, or None."""
    if os.geteuid() != 0:
        return "needs root; run it with: sudo make test"
    if not has_memory_hierarchy():
        return "needs a mounted memory controller (cgroup v1 or v2); run it on a machine that has one"
    return None


def what_deploy_lacks() -> str | None:
    """Return why manifests cannot be rendered here and what to do, or None."""
    if platform.machine() not in {"x86_64", "aarch64"}:
        return "needs x86-64 or arm64, for which Go's wheel is made"
    if not shutil.which("apt-get"):
        return "needs a Debian or Ubuntu, whose archive promtool comes from"
    return None


def what_quick_deploy_lacks() -> str | None:
    """Return why manifests are not rendered by a quick run, or None."""
    if lacks := what_deploy_lacks():
        return lacks
    command = [sys.executable, "-m", "tests.deploy.programs", "--are-here"]
    if subprocess.run(command, cwd=TESTS.parent, check=False).returncode:
        return "helm and kustomize are not compiled yet, which takes minutes; run: make test-all"
    return None


def what_cluster_lacks() -> str | None:
    """Return why no cluster can be started here and what to do, or None."""
    if os.geteuid() != 0:
        return "needs root: its node is made of cgroups and namespaces; run it with: sudo make test"
    if platform.machine() not in {"x86_64", "aarch64"}:
        return "needs x86-64 or arm64, for which Go's wheel and the image are made"
    if not shutil.which("apt-get"):
        return "needs a Debian or Ubuntu, whose archive containerd and runc come from"
    return None


def what_vm_lacks() -> str | None:
    """Return why no virtual machine can be booted here and what to do, or None."""
    if platform.machine() != "x86_64":
        return "needs x86-64: the kernels are Debian's for amd64"
    if not shutil.which("apt-get"):
        return "needs a Debian, whose archive the kernels come from"
    if os.geteuid() != 0 and not shutil.which("qemu-system-x86_64"):
        return "needs QEMU; install it once with: sudo .ci/setup vm"
    if " " in str(TESTS.parent):
        return "needs a checkout without a space in its path, which virtme-ng splits; move it"
    return None


def what_browser_lacks() -> str | None:
    """Return why no browser can be started here and what to do, or None."""
    if shutil.which("chromium") and shutil.which("chromedriver"):
        return None
    if not shutil.which("apt-get"):
        return "needs a Debian, whose archive Chromium comes from"
    if os.geteuid() != 0:
        return "needs Chromium and its driver; install them once with: sudo .ci/setup browser"
    return None


def what_node_lacks() -> str | None:
    """Return why no node can be booted here and what to do, or None."""
    if platform.machine() != "x86_64":
        return "needs x86-64: its image is Debian's for amd64"
    return what_cluster_lacks()


def run_folder(folder: str, arguments: Sequence[str], *, brings: bool = True) -> Counted:
    """Run one folder's tests, after what brings what they need."""
    lane = lane_of(folder, arguments)
    if brings and lane.brings and (code := subprocess.run(lane.brings, cwd=TESTS.parent, check=False).returncode):
        return _not_brought(folder, code)
    lane.report.unlink(missing_ok=True)
    watched = Watched(lane.report, lane.environment)
    code = watched.run(lane.command, TESTS.parent)
    return _counted_with_left(folder, lane.report, code, watched)


def run_lanes(arguments: Mapping[str, Sequence[str]], when_only_live: Callable[[], None]) -> Counted:
    """Run folders side by side, each with its arguments; print what each printed when it has ended."""
    color = ["--color=yes"] if sys.stdout.isatty() else []
    measured, total = _measured(), Counted()
    chosen = [
        lane_of(folder, [*color, *arguments[folder]], measured if folder in _NEEDS_NOTHING else {})
        for folder in sorted(arguments, key=_ORDER.index)
    ]

    def ended(lane: lanes.Lane, code: int) -> None:
        print(f"\n-- {lane.folder}\n{lane.output.read_text(errors='replace')}", end="", flush=True)
        total.add(
            _counted_with_left(lane.folder, lane.report, code, lane.watched)
            if lane.watched
            else _not_brought(lane.folder, code)
        )

    lanes.run(chosen, ended, when_only_live)
    return total


def lane_of(folder: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> lanes.Lane:
    """Return how the tests of a folder are run."""
    report = REPORTS / f"{folder}.xml"
    is_quick = f"not {slow.MARK}" in arguments
    brought = {"deploy": programs.DEPLOY, "node": programs.NODE}
    brought["cluster"] = programs.CLUSTER_QUICK if is_quick else programs.CLUSTER
    if folder == "node" and time_limit.is_over("node"):  # that took minutes
        brought["node"] = ()
    modules = brought.get(folder, ())
    return lanes.Lane(
        folder,
        _command(folder, report, arguments),
        report,
        is_live=folder in _ON_THIS_KERNEL,
        environment={**_bytecode(), **(environment or {})},
        brings=[sys.executable, "-m", "tests.programs", *modules] if modules else [],
    )


def _not_brought(folder: str, code: int) -> Counted:
    return died(f"{folder}: what it needs could not be brought: tests.programs ended with {code}")


# Nothing else that is started here is measured: tests of this runner start it, too.
def _measured() -> Mapping[str, str]:
    folder = os.environ.pop(cover.VARIABLE, None)
    return cover.environment(Path(folder).absolute()) if folder else {}


# Not for what is installed or built before the tests: pip would put there what it compiles for others, too.
def _bytecode() -> dict[str, str]:
    if not os.environ.get("PYTHONDONTWRITEBYTECODE"):
        return {}
    # None in the checkout then; but of hundreds of processes not each is to compile the package.
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(REPORTS.with_name("bytecode"))}


def _command(folder: str, report: Path, arguments: Sequence[str]) -> list[str]:
    again = [AGAIN] if folder in _LIVE else []
    # A test's own time: what its fixture sets up for others, too, is not why it takes long (slow.py).
    options = [f"--junitxml={report}", "--override-ini=junit_duration_report=call", f"--timeout={_TEST_S}"]
    options += [*again, *_IN_PARALLEL.get(folder, [])]
    return [sys.executable, "-m", "pytest", "-q", *options, str(TESTS / folder), *arguments]


def _counted_with_left(folder: str, report: Path, code: int, watched: Watched) -> Counted:
    counted = _counted(folder, report, code)
    left = [f"{folder}: left behind: {what}" for what in watched.left()]
    counted.add(Counted(failed=len(left), names=left))
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
    late = sum(time_limit.LEFT_OUT in skip.get("message", "") for case in cases for skip in case.iter("skipped"))
    left_out = [f"{folder}: {late} slow tests"] * (late > 0)
    return Counted(passed, failed, skipped, names, unsteady, left_out, _items(folder, cases))


# The modules with tests of which only some runs have each, where none failed and not all were skipped.
def _items(folder: str, cases: Sequence[ET.Element]) -> dict[str, float]:
    modules: dict[str, list[ET.Element]] = {}
    for case in cases:
        if folder in ("browser", "node") or _property(case, slow.MARK):
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


def judge_second_tries(total: Counted, folders: list[str]) -> None:
    """Write down what passed and what needed a second try (ledger.py); what needed it twice in this run has failed."""
    failed = [f"needed a second try twice: {name}" for name in twice(total.unsteady)]
    total.add(Counted(failed=len(failed), names=failed))
    if _TRIED_AGAIN & set(folders) or total.items:
        try:
            ledger.record(total.items, total.unsteady)
        except OSError as error:
            print(f"{ledger.runs_file()}: {error.strerror}: what passed and was tried again is not written down")


def judge_slow(total: Counted, folders: Sequence[str]) -> None:
    """Add what takes long without the mark `slow`; in a virtual machine everything takes long."""
    found = slow.unmarked([folder for folder in folders if folder not in ("node", "vm")], REPORTS, TESTS)
    names = [f"takes longer than {slow.LIMIT_S:g} s and is not marked {slow.MARK}: {name}" for name in found]
    total.add(Counted(failed=len(names), names=names))


def main(arguments: list[str]) -> int:
    """Run the folders named, or all; print the total; return the exit code."""
    asked = _asked(arguments)
    REPORTS.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # Whatever a shell starts in its background ignores SIGINT, and so would all that is started here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if what_host_lacks() is None:
        # A host test that would skip here fails: see tests/conftest.py.
        os.environ.setdefault("KOORDEBPF_REQUIRE", "host,cluster,node")
    started_s = time.monotonic()
    lacking = _lacking(quick=asked.quick)
    left_to_name = _ONLY_BY_NAME if asked.kernels == "first" else set()
    wanted = asked.folders or [folder for folder in FOLDERS if folder not in left_to_name]
    chosen = [folder for folder in wanted if lacking.get(folder) is None]
    for extra in ("vm", "cluster", "node", "browser"):
        if extra in chosen:  # before anything runs: what it misses goes into the same .venv
            subprocess.run([TESTS.parent / ".ci" / "setup", extra], cwd=TESTS.parent, check=False)
    total = _run_all(asked, chosen, started_s)
    judge_second_tries(total, chosen)
    if not asked.for_pytest:
        judge_slow(total, chosen)
    print(f"\n{time.monotonic() - started_s:.0f} s in all")
    print(*(f"left out: {folder}: {lacking[folder]}\n" for folder in wanted if folder not in chosen), sep="", end="")
    print(*(f"left out, no time was left: {name}\n" for name in total.left_out), sep="", end="")
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
    parser.add_argument("folders", nargs="*", metavar="FOLDER", help=f"one of {', '.join(FOLDERS)}; default: all")
    parser.add_argument("--kernels", default="first", help="virtual machines: first, all, or some by name")
    parser.add_argument("--quick", action="store_true", help="without virtual machines and slow tests")
    asked = parser.parse_args(arguments[:at])
    if unknown := sorted(set(asked.folders) - set(FOLDERS)):
        parser.error(f"no test folder {', '.join(unknown)}; there are: {', '.join(FOLDERS)}")
    asked.for_pytest = arguments[at + 1 :]
    return asked


def _lacking(*, quick: bool) -> dict[str, str | None]:
    """Return why folders cannot run here, by folder; None: they can."""
    return {
        "deploy": what_quick_deploy_lacks() if quick else what_deploy_lacks(),
        "host": what_host_lacks(),
        "browser": "a browser is part of make test-all" if quick else what_browser_lacks(),
        "cluster": what_cluster_lacks(),
        "node": what_node_lacks(),
        "vm": "other kernels are part of make test-all" if quick else what_vm_lacks(),
    }


def _run_all(asked: argparse.Namespace, chosen: Sequence[str], started_s: float) -> Counted:
    total, machines = Counted(), None
    marks = ["-m", f"not {slow.MARK}"] if asked.quick else []
    arguments = {folder: [*marks, *asked.for_pytest] for folder in chosen if folder != "vm"}
    if "node" in arguments and not asked.folders:
        arguments["node"] += ["-m", slow.STORY]

    def boot() -> None:
        nonlocal machines
        machines = Machines(asked.kernels, REPORTS) if "vm" in chosen else None

    try:
        if len(arguments) > 1 and not asked.for_pytest:
            print(f"\n== {', '.join(arguments)} · side by side", flush=True)
            total.add(run_lanes(arguments, boot))
            arguments = {}
        else:
            boot()
        for folder, given in arguments.items():
            seconds = time.monotonic() - started_s
            print(f"\n== {folder} · needs {FOLDERS[folder]} · {seconds:.0f} s since the start", flush=True)
            total.add(run_folder(folder, given))
        if machines:
            print(f"\n== vm · needs {FOLDERS['vm']} · {time.monotonic() - started_s:.0f} s since the start", flush=True)
            total.add(machines.counted())
    finally:
        if machines:
            machines.end()
    return total


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
