"""What the matrix of kernels promises: nothing that goes wrong in a machine is missed, nothing else is called wrong."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from tests.vm import kernels
from tests.vm.__main__ import Slots, failures, main, unsteady, with_environment
from tests.vm.compiled import not_taken
from tests.vm.guest import Found
from tests.vm.kernel_log import splats, stacks
from tests.vm.kernels import CannotHave
from tests.vm.marks import WORD
from tests.vm.matrix import MATRIX, chosen
from tests.vm.verdict import judge

OOM_REPORT = f"""\
[   50.0] {WORD} tests/host/test_signals.py::test_exactly_23_oom_kills
[   51.0] python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
[   51.0] CPU: 0 PID: 812 Comm: python Not tainted 6.1.0-56-amd64 #1  Debian 6.1.192-2
[   51.0] Call Trace:
[   51.0]  dump_header+0x4a/0x211
[   51.0] memory: usage 16384kB, limit 16384kB, failcnt 40
[   51.1] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/t,task=python,pid=812
[   51.1] Memory cgroup out of memory: Killed process 812 (python) total-vm:83324kB, anon-rss:15520kB, file-rss:5632kB
"""
JUNIT = """<testsuites><testsuite tests="3">
<testcase classname="tests.host.test_a" name="test_good" time="1.04"/>
<testcase classname="tests.host.test_a" name="test_bad" time="2">
<failure message="assert 1 == 2">E  1 == 2</failure></testcase>
<testcase classname="tests.host.test_a" name="test_other" time="0">
<skipped message="not this kind of machine: v1"/></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: CPU: 0 PID: 1 at mm/memcontrol.c:2301 drain_stock+0x1/0x2",
        "BUG: unable to handle page fault for address: ffffffff",
        "BUG: sleeping function called from invalid context at mm/slab.h:1",
        "Oops: 0000 [#1] PREEMPT SMP NOPTI",
        "Call Trace:",
        "INFO: task python:812 blocked for more than 120 seconds.",
        "rcu: INFO: rcu_preempt self-detected stall on CPU",
        "watchdog: BUG: soft lockup - CPU#0 stuck for 120s! [python:812]",
        "python: page allocation failure: order:4",
    ],
)
def test_a_splat_is_found_with_its_test(line):
    log = f"[    1.0] Linux version 6.1\n[   9.0] {WORD} tests/host/test_x.py::test_y\n[   10.0] {line}\n"
    (splat,) = splats(log)
    assert (line in splat.line, splat.test) == (True, "tests/host/test_x.py::test_y")


def test_an_oom_report_is_what_a_test_provokes():
    assert splats(OOM_REPORT) == []


def test_a_warning_inside_and_a_trace_after_an_oom_report_are_found():
    inside = OOM_REPORT.replace("[   51.0] memory:", "[   51.0] WARNING: CPU: 0 PID: 1 at mm/x.c:1\n[   51.0] memory:")
    assert [splat.line for splat in splats(inside)] == ["[   51.0] WARNING: CPU: 0 PID: 1 at mm/x.c:1"]
    assert len(splats(OOM_REPORT + "[   52.0] Call Trace:\n")) == 1


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Give the files of a machine in which all went well, but for one test."""
    write(tmp_path)
    (tmp_path / "junit.xml").write_text(JUNIT)
    (tmp_path / "dmesg.txt").write_text(OOM_REPORT)
    return tmp_path


def write(folder: Path, pytest_exit: int = 1, left: dict[str, list[int]] | None = None) -> None:
    found = Found("6.1.0-56-amd64", pytest_exit, 3.0, {}, left or {}, [])
    (folder / "found.json").write_bytes(msgspec.json.encode(found))


def test_outcomes_are_read(results):
    verdict = judge(results)
    assert [verdict.count(state) for state in ("passed", "failed", "skipped")] == [1, 1, 1]
    assert verdict.wrong == ()
    assert verdict.tests[1].text.splitlines() == ["assert 1 == 2", "E  1 == 2"]


def test_what_is_left_in_the_kernel_has_failed(results):
    write(results, left={"prog": [7, 9]})
    assert judge(results).wrong == ("BPF progs left in the kernel: [7, 9]",)
    assert judge(results).count("failed") == 2


@pytest.mark.parametrize("name", ["found.json", "junit.xml", "dmesg.txt"])
def test_a_file_that_is_missing_has_failed(results, name):
    (results / name).unlink()
    assert judge(results).wrong
    assert judge(results).is_only_silent == (name == "found.json")


def test_a_machine_that_died_of_its_kernel_is_not_only_silent(results):
    (results / "found.json").unlink()
    (results / "dmesg.txt").write_text("[   51.0] WARNING: CPU: 0 PID: 1 at mm/x.c:1\n")
    assert not judge(results).is_only_silent


def test_a_pytest_that_was_interrupted_has_failed(results):
    write(results, pytest_exit=2)
    assert "pytest ended with 2" in judge(results).wrong[0]


ASKED = """\
[  114.7] Uhhuh. NMI received for unknown reason 21 on CPU 0.
[  114.7] Kernel panic - not syncing: NMI: Not continuing
[  114.7] NMI backtrace for cpu 0
[  114.7] RIP: 0010:native_safe_halt+0xb/0x10
[  114.8] task:kthreadd        state:S stack:0     pid:2     ppid:0      flags:0x00004000
[  114.8]  kthreadd+0x292/0x2d0
[  114.8] task:python          state:S stack:0     pid:150   ppid:115    flags:0x00000002
[  114.8]  do_nanosleep+0x7b/0x140
[  114.8] Sched Debug Version: v0.11, 6.1.0-56-amd64 #1
[  114.8] cpu#0, 2445.427 MHz
"""


def test_a_machine_that_was_killed_says_in_which_test_and_where(results):
    (results / "found.json").unlink()
    (results / "junit.xml").unlink()
    (results / "dmesg.txt").write_text(OOM_REPORT + ASKED)
    verdict = judge(results)
    (wrong,) = verdict.wrong  # the panic that was asked for is none
    assert verdict.is_only_silent
    assert wrong.endswith("before its tests had ended, in tests/host/test_signals.py::test_exactly_23_oom_kills")
    assert [line.partition("] ")[2].split()[0] for line in stacks(ASKED)] == [
        "Kernel", "NMI", "RIP:", "task:python", "do_nanosleep+0x7b/0x140",
    ]  # fmt: skip
    assert failures(MATRIX[0], verdict) == [f"{MATRIX[0].title}: {wrong}"]


def test_what_failed_is_named(results):
    assert failures(MATRIX[0], judge(results)) == [f"{MATRIX[0].title}: test_a::test_bad"]


TWO_TRIES = """<testsuites><testsuite tests="1">
<testcase classname="tests.host.test_a" name="test_unsteady" time="2"/>
<testcase classname="tests.host.test_a" name="test_unsteady" time="1">
<properties><property name="tries" value="2"/></properties>{end}</testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("end", "of_it", "reported_as"),
    [("", (1, 0, 0), ["test_a::test_unsteady"]), ('<failure message="again">why</failure>', (0, 1, 0), [])],
)
def test_of_two_tries_the_last_counts_and_the_first_is_reported(results, end, of_it, reported_as):
    (results / "junit.xml").write_text(TWO_TRIES.format(end=end))
    verdict = judge(results)
    assert tuple(verdict.count(state) for state in ("passed", "failed", "skipped")) == of_it
    assert list(unsteady(MATRIX[0], verdict)) == [f"{MATRIX[0].title}: {name}" for name in reported_as]


def test_nothing_left_of_a_machine_has_failed(tmp_path):
    verdict = judge(tmp_path / "none")
    assert (verdict.count("passed"), verdict.count("failed") > 0) == (0, True)


def test_first_and_rest_are_all():
    assert chosen(["first"]) + chosen(["rest"]) == MATRIX == chosen([])
    assert len({variant.folder for variant in MATRIX}) == len(MATRIX)


def test_a_compiled_kernel_has_a_configuration():
    folder = Path(__file__).parents[1] / "vm"
    assert {each.config for each in MATRIX if each.config} == {path.name for path in folder.glob("*.config")}


def test_an_option_that_kconfig_drops_is_named():
    asked = "# why\n\nCONFIG_SMP=y\nCONFIG_SCHED_CORE=y\n# CONFIG_VT is not set\n"
    made = "CONFIG_SMP=y\n# CONFIG_SCHED_CORE is not set\n# CONFIG_VT is not set\n"
    assert not_taken(asked, made) == ["CONFIG_SCHED_CORE=y"]


@pytest.mark.parametrize("word", ["5.11", "6.1-v3", ""])
def test_a_machine_that_is_none_is_refused(word):
    with pytest.raises(CannotHave, match="there are: first"):
        chosen([word])


def test_a_word_that_means_nothing_is_said_in_a_fresh_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "none" / "yet"
    monkeypatch.setattr("tests.vm.__main__.RESULTS", results)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = signal.getsignal(signal.SIGTERM)
    try:
        result = CliRunner().invoke(main, ["no-psi"])
    finally:
        signal.signal(signal.SIGTERM, before)
    assert result.exit_code == 1
    assert "no kernel or machine 'no-psi'; there are: first" in result.output
    assert msgspec.json.decode((results / "counts.json").read_bytes())["failed"] == 1


def test_of_two_that_want_a_kernel_at_once_one_downloads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    downloads: list[str] = []

    def download(series: kernels.Series, home: Path, _say: kernels.Say) -> kernels.Kernel:
        downloads.append(series.name)
        time.sleep(0.3)
        home.mkdir()
        (home / "release").write_text("6.1.0\n")
        return kernels.Kernel(series.name, "6.1.0", home)

    monkeypatch.setattr(kernels, "_download_kernel", download)
    with ThreadPoolExecutor(2) as clones:
        had = list(clones.map(lambda _: kernels.obtain(kernels.SERIES["6.1"], lambda _: None), range(2)))
    assert had[0] == had[1]
    assert downloads == ["6.1"]


def test_what_is_set_is_in_the_environment_of_each_machine() -> None:
    with_pairs = with_environment(MATRIX, ["KOORDEBPF_PAIRS=20", "EMPTY="])
    for before, after in zip(MATRIX, with_pairs, strict=True):
        assert after.environment == {**before.environment, "KOORDEBPF_PAIRS": "20", "EMPTY": ""}
    with pytest.raises(CannotHave, match="NAME=VALUE"):
        with_environment(MATRIX, ["=20"])


def test_as_many_machines_run_as_cpus_may_be_used() -> None:
    every = os.sched_getaffinity(0)
    if len(every) < 2:
        pytest.skip("not this kind of machine: it has one CPU")
    slots, is_in = Slots(2), threading.Event()

    def second() -> None:
        with slots.one():
            is_in.set()

    thread = threading.Thread(target=second)
    os.sched_setaffinity(0, {min(every)})
    try:
        with slots.one():
            thread.start()
            assert not is_in.wait(0.2)
            os.sched_setaffinity(0, every)
            assert is_in.wait(30)
    finally:
        os.sched_setaffinity(0, every)
        thread.join()
