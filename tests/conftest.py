"""What every folder of tests shares: when a skip is a failure, which try a test passed at, and what needs root."""

from __future__ import annotations

import importlib.util
import itertools
import os
import signal
import tempfile
import threading
import traceback
from collections.abc import Generator, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Never, TypeVar

import pytest

from tests import needs, slow
from tests.support import decided_again

os.environ.setdefault("KOORDEBPF_RUN_RECORDER_FOLDER", "none")  # agents of tests do not write to /var/lib

R = TypeVar("R", pytest.TestReport, pytest.CollectReport)

_TESTS = Path(__file__).parent

# KOORDEBPF_REQUIRE=host,vm: the folders of which no test may be skipped, but for those of another kind of machine
# (cgroup v2 only, a newer kernel), whose reason begins with these words.
OTHER_MACHINE = "not this kind of machine: "
# The property of junit.xml that says how often a test was tried; each try is a testcase there.
TRIES = "tries"
CAUSE = "cause"  # how the first of them failed
_CAUSE_CHARS = 400
_CAUSE_LINES = 2  # the first names what was done, the second how it failed, where a program was run
SPENT = "spent"  # seconds with its fixtures, where those are many
_REPORTED_S = 0.5
_REQUIRED = frozenset(filter(None, os.environ.get("KOORDEBPF_REQUIRE", "").split(",")))
# The module without which a folder's tests cannot be collected; `.ci/setup FOLDER` installs it.
_NEEDED = {"browser": "selenium", "cluster": "trustme", "node": "qemu.qmp"}
_NOT_COLLECTED = pytest.StashKey[list[str]]()
_CAUSE = pytest.StashKey[str]()
_SPENT = pytest.StashKey[float]()


def _fail_if_required(report: R, path: Path) -> R:
    folder = next(iter(path.relative_to(_TESTS).parts), "") if path.is_relative_to(_TESTS) else ""
    if report.skipped and folder in _REQUIRED and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
        if str(reason).removeprefix("Skipped: ").startswith(OTHER_MACHINE):
            return report
        report.outcome = "failed"
        report.longrepr = f"{reason}\nKOORDEBPF_REQUIRE={','.join(sorted(_REQUIRED))} allows no skip in tests/{folder}"
    return report


def pytest_configure(config: pytest.Config) -> None:
    """Say which marks there are for what tests need; let SIGTERM end a run as ^C does."""
    for need, what in needs.ALL.items():
        config.addinivalue_line("markers", f"{need}: needs {what} (tests/needs.py)")
    config.stash[_NOT_COLLECTED] = []
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _interrupt)
        # What a test forks ends of SIGTERM, as any process.
        os.register_at_fork(after_in_child=_restore_signals)


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder whose path leaves room for a socket's name: the kernel takes 107 bytes, and `tmp_path` may be longer."""
    with tempfile.TemporaryDirectory(prefix="sockets-") as folder:
        yield Path(folder)


@pytest.fixture
def no_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each wait be the shortest that chance may give it."""
    monkeypatch.setattr("random.uniform", lambda least, _most: least)


# SIGTERM ends a run as ^C does: fixtures remove what they made. The runner, which may have had the same signal, sends
# SIGINT beside it, before or after, which must not end that; one more does.
def _interrupt(number: int, frame: FrameType | None) -> Never:
    def pass_over(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGTERM, pass_over)
    signal.signal(signal.SIGINT, pass_over if number == signal.SIGTERM else signal.default_int_handler)
    raise KeyboardInterrupt(f"in {', called by '.join(_places(frame)) or 'no test'}")


def _places(frame: FrameType | None) -> Iterator[str]:
    """Yield where a test was, the innermost first."""
    for at, line in traceback.walk_stack(frame):
        path = Path(at.f_code.co_filename)
        if _TESTS in path.parents:
            yield f"{path.relative_to(_TESTS)}:{line} {at.f_code.co_name}"


def _restore_signals() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out a folder whose packages are not installed, and name it at the end; one that is required fails."""
    folder = collection_path.name
    needed = _NEEDED.get(folder) if collection_path.parent == _TESTS else None
    if needed is None or folder in _REQUIRED or _is_installed(needed):
        return None
    config.stash[_NOT_COLLECTED].append(folder)
    return True


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that it is in
        return False


@pytest.hookimpl(tryfirst=True)  # before those that are marked are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each with what it needs."""
    for path, of_module in itertools.groupby(items, key=lambda item: item.path):
        need = needs.of_module(path) if path.is_relative_to(_TESTS) else needs.NOTHING
        for item in of_module:
            item.add_marker(need)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object | None:
    """Keep the tests of a module in one process, all that use the live kernel in one, an API server's, and machines."""
    if config.getoption("dist") != "load":  # that of `pytest -n 2`
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            module = nodeid.partition("::")[0]
            need = needs.of_module(_TESTS.parent / module)
            return needs.ROOT if need in needs.LIVE else module if need == needs.NOTHING else need

    return Scheduling(config, log)


# Last, so that pytest-rerunfailures sees a skip that became a failure: such a one is not tried again (again.txt).
@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = _fail_if_required((yield), item.path)
    item.stash[_SPENT] = item.stash.get(_SPENT, 0.0) + report.duration
    if not report.passed and _CAUSE not in item.stash and (crash := getattr(report.longrepr, "reprcrash", None)):
        message = " ".join(crash.message.split("\n")[:_CAUSE_LINES]).strip()
        item.stash[_CAUSE] = f"{message[:_CAUSE_CHARS]} ({Path(crash.path).name}:{crash.lineno})"
    if report.when == "teardown":
        if (tries := getattr(item, "execution_count", 1)) > 1:  # by pytest-rerunfailures
            report.user_properties += [(TRIES, tries), (CAUSE, item.stash.get(_CAUSE, ""))]
        if item.stash[_SPENT] >= _REPORTED_S:
            report.user_properties.append((SPENT, f"{item.stash[_SPENT]:.1f}"))
        report.user_properties += [(mark, "yes") for mark in slow.MARKS if item.get_closest_marker(mark)]
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _fail_if_required((yield), collector.path)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    is_all = any(_TESTS.is_relative_to(Path(config.invocation_params.dir, argument)) for argument in config.args)
    for folder in config.stash[_NOT_COLLECTED] if is_all else ():
        terminalreporter.line(f"left out: {folder}: install what it needs with: .ci/setup {folder}")
    if decided_again.counts:
        counts = ", ".join(f"{count} {name}" for name, count in decided_again.counts.items())
        terminalreporter.line(f"decisions of live agents, decided again and equal: {counts}")


@pytest.fixture
def require_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes cgroups and loads programs into the kernel")
