"""What a machine's result files say: each test's outcome, and what no test may leave behind."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Literal

import msgspec

from tests.conftest import CAUSE, TRIES
from tests.slow import node_of
from tests.vm.guest import Found
from tests.vm.kernel_log import last_test, splats

State = Literal["passed", "failed", "skipped"]
STATES: tuple[State, ...] = ("passed", "failed", "skipped")
_PYTEST_RAN = {0, 1}  # pytest.ExitCode OK and TESTS_FAILED


class TestResult(msgspec.Struct, frozen=True):
    """One test in one machine."""

    __test__ = False

    name: str
    state: State
    seconds: float
    text: str = ""  # why it failed or was skipped
    tries: int = 1
    cause: str = ""  # how the first of them failed
    node: str = ""  # pytest's id


class Verdict(msgspec.Struct, frozen=True):
    """Everything about one machine. It is well if no test failed and nothing is `wrong`."""

    tests: tuple[TestResult, ...]
    wrong: tuple[str, ...]  # each counts as a failure
    release: str = ""
    programs: dict[str, str] = {}
    strategies: dict[str, str] = {}
    cpu_s: float = 0.0  # that it had a CPU, however often it was booted

    @property
    def is_only_silent(self) -> bool:
        """Tell whether it was ended before its tests had, and its kernel's log has no word about why."""
        return not self.release and len(self.wrong) == 1

    def count(self, state: State) -> int:
        """Return how many tests ended so; what is wrong beside them has failed."""
        return sum(test.state == state for test in self.tests) + (len(self.wrong) if state == "failed" else 0)


def judge(results: Path) -> Verdict:
    """Return what the files of a machine say; a file that is missing is wrong, not nothing."""
    wrong: list[str] = []
    found: Found | None = None
    try:
        found = msgspec.json.decode((results / "found.json").read_bytes(), type=Found)
    except FileNotFoundError:
        test = last_test(_log(results))
        wrong.append(f"the machine died or was killed before its tests had ended{f', in {test}' if test else ''}")
    tests = read_tests(results / "junit.xml")
    if found:
        if not tests or found.pytest_exit not in _PYTEST_RAN:
            wrong.append(f"pytest ended with {found.pytest_exit} after {len(tests)} tests")
        wrong += [f"BPF {kind}s left in the kernel: {ids}" for kind, ids in sorted(found.left.items())]
        wrong += [f"cgroup left: {path}" for path in found.cgroups_left]
    if log := _log(results):
        wrong += [f"kernel log: {splat.line}" + (f" (in {splat.test})" if splat.test else "") for splat in splats(log)]
    else:
        wrong.append("there is no kernel log")
    if not found:
        return Verdict(tests, tuple(wrong))
    return Verdict(tests, tuple(wrong), found.release, found.programs, found.strategies)


def _log(results: Path) -> str:
    try:
        return (results / "dmesg.txt").read_text(errors="replace")
    except FileNotFoundError:
        return ""


def read_tests(junit: Path) -> tuple[TestResult, ...]:
    """Return each test of a report of pytest; none if there is no report."""
    try:
        cases = ET.parse(junit).getroot().iter("testcase")
    except (FileNotFoundError, ET.ParseError):
        return ()
    tests = map(_test, cases)
    return tuple({test.node: test for test in tests}.values())  # of two tries the last one counts


def _test(case: ET.Element) -> TestResult:
    name = f"{case.attrib['classname'].rpartition('.')[2]}::{case.attrib['name']}"
    state: State = "passed"
    text = ""
    for child in case:
        if child.tag in {"failure", "error"}:
            state, text = "failed", f"{child.attrib.get('message', '')}\n{child.text or ''}"
            break
        if child.tag == "skipped":
            state, text = "skipped", child.attrib.get("message", "")
    properties = {each.attrib["name"]: each.attrib["value"] for each in case.iterfind("properties/property")}
    seconds = round(float(case.attrib["time"]), 1)
    times, cause = int(properties.get(TRIES, 1)), properties.get(CAUSE, "")
    return TestResult(name, state, seconds, text.strip(), times, cause, node_of(case))
