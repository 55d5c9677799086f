"""The test runner's own promises: nothing required is skipped in silence, and nothing that died counts as passed."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import programs
from tests.contract.apiserver import until
from tests.support.patience import patience

TESTS = Path(__file__).parents[1]


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    tests = tmp_path / "tests"
    for name in ("host", "unit"):
        (tests / name).mkdir(parents=True)
    for name in (
        "conftest.py",
        "run.py",
        "again.txt",
        "leftovers.py",
        "git.py",
        "imports.py",
        "ledger.py",
        "slow.py",
        "sum.py",
        "counted.py",
        "cover.py",
        "lacking.py",
        "lanes.py",
        "needs.py",
        "machines.py",
        "programs.py",
    ):
        shutil.copy(TESTS / name, tests)
    again = (TESTS / "again.txt").read_text()
    (tests / "again.txt").write_text(re.sub("--reruns-delay=.*", "--reruns-delay=0", again))
    setup = tmp_path / ".ci" / "setup"
    setup.parent.mkdir()
    setup.write_text("#!/bin/sh\n")
    setup.chmod(0o755)
    return tests


def run(tests: Path, require: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    settings = {"KOORDEBPF_REQUIRE": require, "KOORDEBPF_ENDS_WITHIN_S": "0.5", "XDG_CACHE_HOME": str(tests / "cache")}
    return subprocess.run(
        [sys.executable, str(tests / "run.py"), *arguments],
        env=os.environ | settings, capture_output=True, text=True, check=False,
    )  # fmt: skip


SLEEPS = """
import time
import pytest
class TestOf:
    @pytest.mark.parametrize("word", ["a.b", "c"])
    def test_unmarked(self, word):
        time.sleep(0.6)
@pytest.mark.slow
def test_marked():
    time.sleep(0.6)
@pytest.mark.story
def test_story():
    time.sleep(0.6)
def test_short():
    pass
"""
SKIPS = """
import pytest
from pathlib import Path
@pytest.fixture
def nothing():
    pytest.skip("there is none")
def note(tries=Path(__file__).with_suffix(".tries")):
    tries.write_text((tries.read_text() if tries.exists() else "") + "x")
def test_in_the_test():
    note()
    pytest.skip("no time")
@pytest.fixture
def noted():
    note()
def test_in_a_fixture(noted, nothing):
    pass
"""
FAILS_ONCE_EACH = """
import pytest
tried = set()
@pytest.mark.parametrize("word", ["one", "two"])
def test_it(word):
    first = word not in tried
    tried.add(word)
    assert not first
def test_other():
    test_it("three")
"""
# Load a program of two instructions, "return 1", and let a cgroup alone hold it.
ATTACHES = """
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
def bpf(command, attributes):
    code = libc.syscall(321 if os.uname().machine == "x86_64" else 280, command, attributes, len(attributes))
    assert code >= 0, os.strerror(ctypes.get_errno())
    return code
os.mkdir("{path}")
code = ctypes.create_string_buffer(bytes.fromhex("b700000001000000" "9500000000000000"))
licence = ctypes.create_string_buffer(b"GPL")
where = ctypes.addressof(code), ctypes.addressof(licence)
asked = struct.pack("IIQQIIQII16sII", 8, 2, *where, 0, 0, 0, 0, 0, b"{name}", 0, 0)
program, cgroup = bpf(5, asked), os.open("{path}", os.O_RDONLY)
bpf(8, struct.pack("IIII", cgroup, program, 0, 0))
os.close(program)
os.close(cgroup)
"""


# Passes only while the tests of the other folder run, too; then leaves a process.
MEETS = """
import subprocess, time
from pathlib import Path
here, there = Path(__file__), Path(__file__).parents[1] / "{other}" / "test_meets.py"
def test_it():
    here.with_suffix(".started").touch()
    until = time.monotonic() + {seconds}
    while not there.with_suffix(".started").exists():
        assert time.monotonic() < until, "the other folder does not run"
        time.sleep(0.01)
    subprocess.Popen(["sh", "-c", "sleep 61; : of {own}"], env={{}})
"""
TAKES_LONG = """
import time
from pathlib import Path
def test_it():
    try:
        Path("{started}").touch()
        time.sleep(60)
    finally:
        time.sleep(1)
        Path("{cleaned}").touch()
"""


def one_test(body: str) -> str:
    return f"import os, pytest\ndef test_it():\n    {body}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("require", "reason", "total"),
    [
        ("unit", "no time", "0 passed, 1 failed, 0 skipped"),
        ("unit", "not this kind of machine: v2 only", "0 passed, 0 failed, 1 skipped"),
        ("host", "no time", "0 passed, 0 failed, 1 skipped"),
    ],
)
def test_a_required_skip_fails_unless_it_is_for_another_machine(folders, require, reason, total):
    (folders / "unit" / "test_skip.py").write_text(one_test(f"pytest.skip({reason!r})"))
    done = run(folders, require, "unit")
    assert done.stdout.splitlines()[-1] == total
    assert done.returncode == 1, "nothing passed"


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    ["os._exit(0)", "os.abort()", "assert False", "raise KeyboardInterrupt"],
    ids=lambda body: body.split("(")[0],
)
def test_what_dies_or_fails_is_counted(folders, body):
    (folders / "unit" / "test_death.py").write_text(one_test(body))
    done = run(folders, "", "unit")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"


@pytest.fixture
def short_limit(folders: Path) -> None:
    text = (folders / "slow.py").read_text()
    (folders / "slow.py").write_text(text.replace("LIMIT_S = 3.0", "LIMIT_S = 0.1"))
    (folders.parent / "pytest.ini").write_text("[pytest]\nmarkers =\n slow\n story\n")


@pytest.mark.slow
@pytest.mark.usefixtures("short_limit")
def test_what_takes_long_says_so(folders):
    (folders / "unit" / "test_long.py").write_text(SLEEPS)
    done = run(folders, "", "unit")
    why = "failed: takes longer than 0.1 s and is not marked slow: tests/unit/test_long.py"
    names = [f"{why}::TestOf::test_unmarked[{word}]" for word in ("a.b", "c")]
    assert [line for line in done.stdout.splitlines() if line.startswith("failed: ")] == names
    assert done.returncode == 1


@pytest.mark.slow
@pytest.mark.usefixtures("short_limit")
def test_what_takes_long_not_each_time_is_no_failure(folders):
    seen = folders / "seen"
    (folders / "unit" / "test_long.py").write_text(
        f"import pathlib, time\ndef test_it(seen=pathlib.Path({str(seen)!r})):\n"
        "    seen.exists() or time.sleep(0.6)\n    seen.touch()\n"
    )
    done = run(folders, "", "unit")
    assert done.returncode == 0, done.stdout
    assert "run once more: 1" in done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("short_limit")
def test_what_fails_when_it_is_run_once_more_is_counted(folders):
    (folders / "unit" / "test_once.py").write_text(
        "import time\nfrom pathlib import Path\ndef test_it(ran=Path(__file__).with_suffix('.ran')):\n"
        "    assert not ran.exists()\n    ran.touch()\n    time.sleep(0.6)\n"
    )
    done = run(folders, "", "unit")
    why = "failed: passed, and failed when it was run once more: tests/unit/test_once.py::test_it"
    assert why in done.stdout.splitlines(), done.stdout
    assert done.returncode == 1


@pytest.mark.slow
@pytest.mark.usefixtures("short_limit")
def test_a_quick_run_leaves_out_what_is_slow(folders):
    (folders / "unit" / "test_long.py").write_text(SLEEPS.replace("0.6", "0"))
    done = run(folders, "", "--quick", "unit")
    assert "4 passed, 0 failed, 0 skipped" in done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("short_limit")
def test_one_module_is_run_by_its_path(folders):
    (folders / "unit" / "test_good.py").write_text(one_test("pass"))
    (folders / "unit" / "test_bad.py").write_text(one_test("assert False"))
    done = run(folders, "", "tests/unit/test_good.py")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 passed, 0 failed, 0 skipped")


@pytest.mark.slow
@pytest.mark.usefixtures("short_limit")
def test_a_merge_runs_slow_tests_of_the_modules_whose_turn_it_is_and_of_new_ones(folders):
    (folders / "vm").mkdir()
    (folders / "vm" / "__init__.py").touch()  # else the checkout's own machines were meant
    (folders / "vm" / "matrix.py").write_text("MATRIX = ()\n")
    for name in ("its_turn", "another", "new"):
        (folders / "unit" / f"test_{name}.py").write_text(SLEEPS.replace("0.6", "0"))
    (folders / "unit" / "test_quick.py").write_text(one_test("assert False"))
    items = {"tests/unit/test_its_turn.py": {"turn": 3}, "tests/unit/test_another.py": {"turn": 4}}
    (folders / "ledger.json").write_text(json.dumps({"merges": 11, "items": items}))
    done = run(folders, "", "--merge")
    assert "  tests/unit/test_its_turn.py\n" in done.stdout.partition("== unit")[0]
    assert done.stdout.splitlines()[-1] == "2 passed, 0 failed, 0 skipped", "the marked one of each"


@pytest.mark.slow
def test_a_test_that_passes_is_counted(folders):
    (folders / "unit" / "test_good.py").write_text(one_test("pass"))
    done = run(folders, "", "unit")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 passed, 0 failed, 0 skipped")


@pytest.mark.slow
def test_bytecode_is_kept_where_the_environment_asks_for_none_in_the_checkout(folders, monkeypatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    body = "import sys; assert (sys.dont_write_bytecode, sys.pycache_prefix) == (False, os.environ['WANTED'])"
    monkeypatch.setenv("WANTED", str(folders.parent / ".make" / "bytecode"))
    (folders / "unit" / "test_bytecode.py").write_text(one_test(body))
    assert run(folders, "", "unit").stdout.splitlines()[-1] == "1 passed, 0 failed, 0 skipped"
    assert not list(folders.glob("unit/__pycache__"))


ONCE = "failed once, passed when tried again: "
FAILS_SO_OFTEN = """
from pathlib import Path
def test_it(tries=Path(__file__).with_suffix(".tries")):
    tried = len(tries.read_text()) if tries.exists() else 0
    tries.write_text("x" * (tried + 1))
    assert tried >= {often}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "often", "ends"),
    [
        (
            "host",
            1,
            [
                f"{ONCE}host: test_try::test_it, 1 × so far: assert 0 >= 1 (test_try.py:6)",
                "1 passed, 0 failed, 0 skipped",
            ],
        ),
        ("host", 2, ["failed: host: test_try::test_it", "0 passed, 1 failed, 0 skipped"]),
        ("unit", 1, ["failed: unit: test_try::test_it", "0 passed, 1 failed, 0 skipped"]),
    ],
)
def test_what_fails_among_others_is_tried_once_more_and_reported(folders, folder, often, ends):
    (folders / folder / "test_try.py").write_text(FAILS_SO_OFTEN.format(often=often))
    done = run(folders, "", folder)
    if "left out: host" in done.stdout:
        pytest.skip("host tests cannot run here")
    assert done.stdout.splitlines()[-2:] == ends


@pytest.mark.slow
def test_a_required_skip_is_not_tried_again(folders):
    (folders / "host" / "test_skip.py").write_text(SKIPS)
    done = run(folders, "host", "host")
    if "left out: host" in done.stdout:
        pytest.skip("host tests cannot run here")
    assert done.stdout.splitlines()[-1] == "0 passed, 2 failed, 0 skipped"
    assert (folders / "host" / "test_skip.tries").read_text() == "xx"


@pytest.mark.slow
def test_one_that_needs_a_second_try_twice_in_a_run_fails(folders):
    (folders / "contract").mkdir()
    (folders / "contract" / "test_try.py").write_text(FAILS_ONCE_EACH)
    done = run(folders, "", "contract")
    assert done.stdout.splitlines()[-5:] == [
        *(
            f"{ONCE}contract: test_try::{name}, 1 × so far: assert not True (test_try.py:8)"
            for name in ("test_it[one]", "test_it[two]", "test_other")
        ),
        "failed: needed a second try twice: test_try::test_it",
        "3 passed, 1 failed, 0 skipped",
    ]
    assert done.returncode == 1


@pytest.mark.slow
def test_second_tries_are_counted_over_runs(folders):
    (folders / "contract").mkdir()
    test = folders / "contract" / "test_try.py"
    test.write_text(FAILS_SO_OFTEN.format(often=1))
    assert run(folders, "", "contract").returncode == 0
    assert run(folders, "", "contract").returncode == 0
    test.with_suffix(".tries").unlink()
    assert (
        f"{ONCE}contract: test_try::test_it, 2 × so far: assert 0 >= 1 (test_try.py:"
        in run(folders, "", "contract").stdout
    )


@pytest.mark.slow
@pytest.mark.usefixtures("short_limit")
def test_a_module_whose_slow_tests_passed_is_written_down_with_its_seconds(folders):
    (folders / "unit" / "test_long.py").write_text(SLEEPS)
    (folders / "unit" / "test_bad.py").write_text(SLEEPS.replace("time.sleep(0.6)", "assert False"))
    (folders / "unit" / "test_quick.py").write_text(one_test("pass"))
    run(folders, "", "unit")
    (line,) = (folders / "cache" / "koordebpf" / "runs.jsonl").read_text().splitlines()
    ((module, seconds),) = json.loads(line)["passed"].items()
    assert module == "tests/unit/test_long.py"
    assert 0.6 <= seconds < patience(3)


@pytest.mark.slow
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two CPUs")
def test_folders_that_need_nothing_run_beside_each_other_and_what_each_leaves_is_reported(folders, require_root):
    own = {"unit": "trees", "trees": "unit"}
    for name, other in own.items():
        (folders / name).mkdir(exist_ok=True)
        (folders / name / "test_meets.py").write_text(MEETS.format(own=name, other=other, seconds=patience(30)))
    done = run(folders, "", *own)
    reported = {line for line in done.stdout.splitlines() if line.startswith("failed: ")}
    pattern = r"failed: (\w+): left behind: process \d+: (?:sh -c sleep 61; : of (\w+)|sleep 61)"
    matches = [re.fullmatch(pattern, line) for line in reported]
    assert [match[1] for match in matches if match[2]] == [match[2] for match in matches if match[2]], done.stdout
    assert sorted(match[1] for match in matches) == ["trees", "trees", "unit", "unit"], "each shell and its sleep"
    assert done.stdout.splitlines()[-1] == "2 passed, 4 failed, 0 skipped"


@pytest.mark.slow
def test_modules_of_one_folder_that_need_something_else_run_apart(folders):
    (folders / "unit" / "test_good.py").write_text(one_test("pass"))
    (folders / "unit" / "test_live.py").write_text(f"import pytest\n{LIVE}\n" + one_test("pass"))
    done = run(folders, "", "unit", "host")
    assert {"-- unit", "-- unit-root"} <= set(done.stdout.splitlines())
    assert done.stdout.splitlines()[-1] == "2 passed, 0 failed, 0 skipped"


LIVE = "pytestmark = pytest.mark.root"
ALONE = """
import fcntl, time, pytest
{mark}
@pytest.mark.parametrize("number", range(3))
def test_it(number):
    with open("{lock}", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(0.2)
"""


@pytest.mark.slow
def test_pytest_in_two_processes_runs_live_modules_one_after_the_other(folders):
    for name in ("one", "two", "three"):
        (folders / "unit" / f"test_{name}.py").write_text(ALONE.format(mark=LIVE, lock=folders / "lock"))
        (folders / "host" / f"test_live_{name}.py").write_text(ALONE.format(mark="", lock=folders / "lock"))
    command = [sys.executable, "-m", "pytest", "-q", "-n2", "-p", "no:cacheprovider", str(folders)]
    done = subprocess.run(command, cwd=folders.parent, capture_output=True, text=True, check=False)
    assert "18 passed" in done.stdout, done.stdout


@pytest.mark.slow
def test_what_dies_beside_another_is_counted(folders):
    (folders / "trees").mkdir()
    (folders / "trees" / "test_death.py").write_text(one_test("os.abort()"))
    (folders / "unit" / "test_good.py").write_text(one_test("pass"))
    done = run(folders, "", "unit", "trees")
    *_, failed, total = done.stdout.splitlines()
    assert re.fullmatch(r"failed: trees: pytest ended with -?\d+ and no report", failed)
    assert total == "1 passed, 1 failed, 0 skipped"
    assert done.returncode == 1


@pytest.mark.slow
def test_the_counts_of_several_runs_are_added_up(folders, tmp_path):
    (folders / "unit" / "test_good.py").write_text(one_test("pass"))
    run(folders, "", "unit")
    files = [tmp_path / ".make/tests/counts.json", tmp_path / ".make/tests/counts.json", tmp_path / "none.json"]
    added = [
        subprocess.run([sys.executable, folders / "sum.py", *some], capture_output=True, text=True, check=False)
        for some in (files[:2], files)
    ]
    assert [each.stdout.splitlines()[-1] for each in added] == [
        "2 passed, 0 failed, 0 skipped",
        "2 passed, 1 failed, 0 skipped",
    ]
    assert [each.returncode for each in added] == [0, 1]


@pytest.mark.slow
class TestLeftBehind:
    """What others make meanwhile is theirs, and here always beside it."""

    @pytest.fixture(autouse=True)
    def as_root(self, require_root: None) -> None:
        """Only root's cgroups and files can be told apart."""

    @pytest.fixture
    def name(self, request: pytest.FixtureRequest) -> Iterator[str]:
        """A name for what is left, and taken away at last."""
        name = f"koord-left-{os.getpid()}-{secrets.token_hex(3)}"
        yield name
        for folder in (*cgroup_mounts(), "/run", "/var/tmp"):
            for path in (Path(folder, name), Path(folder, f"{name}-of-others")):
                if path.exists():
                    path.rmdir()

    def left(self, folders: Path, body: str) -> list[str]:
        (folders / "unit" / "test_left.py").write_text(one_test(body))
        done = run(folders, "", "unit")
        *names, total = (
            line for line in done.stdout.splitlines() if line.startswith("failed: ") or " passed, " in line
        )
        assert total == f"1 passed, {len(names)} failed, 0 skipped", done.stdout
        assert done.returncode == int(bool(names))
        return [each.removeprefix("failed: unit: left behind: ") for each in names]

    def test_a_process(self, folders, name):
        with subprocess.Popen(["sleep", "60"]) as of_others:
            started = f"import subprocess, time; its = subprocess.Popen(['sh', '-c', 'sleep 61; : {name}'], env={{}})"
            children = "open(f'/proc/{its.pid}/task/{its.pid}/children').read()"
            found = self.left(folders, f"{started}; any({children} or time.sleep(0.01) for _ in range(3000))")
            of_others.terminate()
        assert len(found) == 2, "the shell and its sleep"
        processes = [re.fullmatch(r"process (\d+): (.*)", line) for line in found]
        assert {match[2] for match in processes} == {f"sh -c sleep 61; : {name}", "sleep 61"}
        assert not any(Path(f"/proc/{match[1]}/cmdline").exists() for match in processes if is_running(match[1]))

    @pytest.mark.parametrize("folder", ["/run", "/var/tmp"])
    def test_a_file(self, folders, name, folder):
        Path(folder, f"{name}-of-others").mkdir()
        assert self.left(folders, f"os.mkdir('{folder}/{name}')") == [f"file {folder}/{name}"]

    def test_a_cgroup(self, folders, name):
        (mount, *_) = cgroup_mounts()
        Path(mount, f"{name}-of-others").mkdir()
        assert self.left(folders, f"os.mkdir('{mount}/{name}')") == [f"cgroup {mount}/{name}"]

    def test_a_mount(self, folders, tmp_path):
        if subprocess.run(["unshare", "--mount", "true"], check=False).returncode:
            pytest.skip("mounts cannot be made here")
        before = Path("/proc/self/mountinfo").read_text()
        place = tmp_path / "mounted"
        place.mkdir()
        found = self.left(folders, f"import subprocess; subprocess.run(['mount', '-t', 'tmpfs', 'none', '{place}'])")
        assert found == [f"mount {place} (tmpfs)"]
        assert Path("/proc/self/mountinfo").read_text() == before

    def test_a_bpf_program(self, folders, name, tmp_path):
        mount = next((path for path, kind in cgroup_mounts().items() if kind == "cgroup2"), None)
        if mount is None:
            pytest.skip("needs a mount of cgroup v2, which holds programs that no process holds")
        (tmp_path / "bpf").mkdir()
        (tmp_path / "bpf" / "x.bpf.c").write_text("int koord_left(void *ctx)")
        for cgroup, of in ((f"{name}-of-others", "koord_others"), (name, "koord_left")):
            body = ATTACHES.format(path=f"{mount}/{cgroup}", name=of)
            if of == "koord_others":
                exec(body, {})
        found = self.left(folders, f"exec({body!r}, {{}})")
        assert found[0] == f"cgroup {mount}/{name}"
        assert [re.sub(r"\d+", "N", line) for line in found[1:]] == ["BPF program N: koord_left"]

    def test_neither_tracefs_nor_debugfs_is_mounted_where_tests_run(self, folders):
        body = "assert not {line.split()[2] for line in open('/proc/self/mounts')} & {'tracefs', 'debugfs'}"
        assert self.left(folders, body) == []


def cgroup_mounts() -> dict[str, str]:
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    return {path: kind for _, path, kind, *_ in mounts if kind in ("cgroup", "cgroup2")}


def is_running(pid: str) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("ended", ["^C", "SIGTERM of the runner", "SIGTERM of all"])
@pytest.mark.parametrize("names", [["unit"], ["contract"], ["unit", "trees"]], ids=" ".join)
def test_the_end_of_a_run_lets_its_tests_clean_up(folders, tmp_path, names, ended):
    for name in names[: os.cpu_count()]:
        (folders / name).mkdir(exist_ok=True)
        body = TAKES_LONG.format(started=tmp_path / f"{name}-started", cleaned=tmp_path / f"{name}-cleaned")
        (folders / name / "test_long.py").write_text(body)
    settings = {"KOORDEBPF_ENDS_WITHIN_S": "20", "XDG_CACHE_HOME": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, str(folders / "run.py"), *names[: os.cpu_count()]],
        env=os.environ | settings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    ) as running:  # fmt: skip
        until(lambda: all((tmp_path / f"{name}-started").exists() for name in names[: os.cpu_count()]), "the tests")
        if ended == "SIGTERM of the runner":
            running.terminate()
        else:
            os.killpg(running.pid, signal.SIGINT if ended == "^C" else signal.SIGTERM)
        running.communicate(timeout=patience(60))
    assert running.returncode
    assert all((tmp_path / f"{name}-cleaned").exists() for name in names[: os.cpu_count()])


@pytest.mark.slow
@pytest.mark.parametrize("names", [["unit"], ["unit", "trees"]], ids=" ".join)
def test_a_quick_run_that_does_not_end_says_what_ran(folders, tmp_path, names, monkeypatch):
    monkeypatch.setenv("KOORDEBPF_RUN_S", "10")
    for name in names:
        (folders / name).mkdir(exist_ok=True)
        body = TAKES_LONG.format(started=tmp_path / f"{name}-started", cleaned=tmp_path / f"{name}-cleaned")
        (folders / name / "test_long.py").write_text(body)
    done = run(folders, "", "--quick", *names)
    assert done.returncode == 1
    assert "after 10 s not all tests have ended" in done.stderr
    assert "test_long.py" in done.stdout and "KeyboardInterrupt" in done.stdout
    assert (tmp_path / "unit-cleaned").exists()


@pytest.mark.parametrize("name", ["units", "tests/unit/test_none.py", "tests/units/test_good.py"])
def test_an_unknown_folder_or_module_is_refused_by_name(folders, name):
    done = run(folders, "", name)
    assert done.returncode == 2
    assert name in done.stderr


# As a user that is not root, also where root runs this.
UNPRIVILEGED = """
import os, runpy, sys
os.geteuid = lambda: 1000
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_what_a_cluster_needs_and_is_not_here_is_reported(folders):
    (folders / "unit" / "test_good.py").write_text(one_test("pass"))
    command = [sys.executable, "-c", UNPRIVILEGED, str(folders / "run.py"), "cluster", "unit"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    *_, left_out, total = done.stdout.splitlines()
    assert left_out.startswith("left out: cluster: needs root")
    assert total == "1 passed, 0 failed, 0 skipped"


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "brought"), [(["--quick"], programs.CLUSTER_QUICK), ([], programs.CLUSTER)])
def test_a_quick_run_builds_no_image(folders, require_root, arguments, brought):
    for name in ("cluster", "node"):
        (folders / name).mkdir()
        (folders / name / "__init__.py").touch()  # else the checkout's own programs were built
    for module in programs.CLUSTER:
        (folders / f"{module.replace('.', '/')}.py").write_text("open(__file__ + '.ran', 'w').close()")
    (folders / "cluster" / "test_good.py").write_text(one_test("pass"))
    (folders.parent / "pytest.ini").write_text("[pytest]\nmarkers =\n slow\n story\n")
    done = run(folders, "", *arguments, "cluster")
    if "left out: cluster" in done.stdout:
        pytest.skip("no cluster can be started here")
    assert done.stdout.splitlines()[-1] == "1 passed, 0 failed, 0 skipped"
    ran = [str(path.relative_to(folders)).removesuffix(".py.ran") for path in folders.rglob("*.ran")]
    assert sorted(ran) == sorted(module.replace(".", "/") for module in brought)
