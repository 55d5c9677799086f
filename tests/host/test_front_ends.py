"""`trace`, `top` and `doctor` as a user calls them, on the running kernel. 23: a prime that nothing gives by chance."""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from koordebpf.kernel.backends.select import BACKEND_VARIABLE
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from tests.host.rigs.live_node import LiveNode, or_skipped
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

pytestmark = pytest.mark.usefixtures("require_root")

N = 23
ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "COLUMNS": "80"}
if BACKEND_VARIABLE in os.environ:
    ENV[BACKEND_VARIABLE] = os.environ[BACKEND_VARIABLE]
HAS_PROGRAMS = ENV.get(BACKEND_VARIABLE) != "files"
TIMEOUT_S = 240  # an emulated machine compiles and boots slowly; nothing is asserted of it
only_programs = pytest.mark.skipif(not HAS_PROGRAMS, reason="not this kind of machine: no program times a stall")

# Reads a sparse file in a cgroup that holds less of it: page cache that has to be reclaimed all the time.
READER = """
import os, sys, time
open(sys.argv[1], "w").write(str(os.getpid()))
fd = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT | os.O_TRUNC)
os.truncate(fd, 64 << 20)
end = time.monotonic() + float(sys.argv[3])
print("reads", flush=True)
while time.monotonic() < end:
    for at in range(0, 64 << 20, 1 << 20):
        os.pread(fd, 1 << 20, at)
    time.sleep(0.2)
"""
HOLDER = """
import os, sys
open(sys.argv[1], "w").write(str(os.getpid()))
held = b"x" * (int(sys.argv[2]) << 20)
print("holds", flush=True)
sys.stdin.read()
"""


def start(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "koordebpf", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV, **more)


def koordebpf(*arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-m", "koordebpf", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=ENV)


def lines_of(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def trace_schema() -> Draft202012Validator:
    schema = json.loads(koordebpf("trace", "--schema").stdout)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 512 * MIB) as made:
        yield made


class Load:
    """A process that works in one cgroup until it is stopped."""

    def __init__(self, program: str, cgroup: Path, *arguments: object) -> None:
        command = [sys.executable, "-c", program, str(cgroup / "cgroup.procs"), *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() in ("reads", "holds")

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def reader(cgroup: Path, seconds: float = TIMEOUT_S) -> Load:
    return Load(READER, cgroup, f"/var/tmp/koord-reads-{os.getpid()}-{cgroup.name[-8:]}", seconds)


@pytest.fixture(autouse=True)
def no_files_left() -> Iterator[None]:
    yield
    for path in Path("/var/tmp").glob(f"koord-reads-{os.getpid()}-*"):
        path.unlink()


@pytest.fixture
def tight(node: NodeCgroup) -> Iterator[Path]:
    """Give a container whose pod thrashes at its own limit."""
    (container,) = node.add_pod("tight", limit_bytes=8 * MIB)
    with reader(container):
        yield container


@pytest.fixture
def manifest(node: NodeCgroup, tmp_path: Path) -> Path:
    return node.write_manifest(tmp_path / "pods.json", 80, 75)


class TestTrace:
    @only_programs
    def test_23_are_23(self, tight: Path, node: NodeCgroup, trace_schema: Draft202012Validator) -> None:
        done = koordebpf(
            "trace", "--count", str(N), "--kind", "reclaim", "--cgroup", str(tight), "--json",
            "--node-cgroup", str(node.path),
        )  # fmt: skip
        lines = lines_of(done)
        assert len(lines) == N
        for line in lines:
            trace_schema.validate(line)
            assert (line["kind"], line["cgroup_id"], line["is_global"]) == ("reclaim", tight.stat().st_ino, False)
        assert done.stderr == ""

    def test_every_kind_that_can_be_provoked_is_reported_and_valid(
        self,
        tight: Path,
        node: NodeCgroup,
        hierarchy: MemoryHierarchy,
        trace_schema: Draft202012Validator,
        tmp_path: Path,
    ) -> None:
        (victim,) = node.add_pod("victim", limit_bytes=16 * MIB)
        wanted = {"cgroup_mkdir", "cgroup_rmdir", "oom_kill", "memcg_event"}
        if HAS_PROGRAMS:
            wanted |= {"reclaim", "migration"}
        if HAS_PROGRAMS or hierarchy.version == 2:
            wanted.add("populated")
        if hierarchy.version == 1:
            wanted.add("cgroup_rename")
        lines = tmp_path / "lines"
        command = [
            sys.executable,
            "-m",
            "koordebpf",
            "trace",
            "--kind",
            "all",
            "--json",
            "--node-cgroup",
            str(node.path),
        ]
        deadline = time.monotonic() + TIMEOUT_S
        with (
            lines.open("w") as out,
            subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, env=ENV) as process,
        ):
            while time.monotonic() < deadline and process.poll() is None:
                provoke(node, victim, hierarchy)
                if all(f'"kind":"{kind}"' in lines.read_text() for kind in wanted):
                    break
            process.terminate()
            _, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0, err
        by_kind: dict[str, list[dict[str, Any]]] = {}
        for line in map(json.loads, lines.read_text().splitlines()):
            by_kind.setdefault(line["kind"], []).append(line)
        assert wanted - by_kind.keys() == set()
        for lines in by_kind.values():
            for line in lines[:N]:
                trace_schema.validate(line)

    @only_programs
    def test_a_pod_is_followed_into_a_container_that_is_born_later(
        self, tight: Path, node: NodeCgroup, manifest: Path
    ) -> None:
        (other,) = node.add_pod("other", limit_bytes=8 * MIB)
        manifest = node.write_manifest(manifest)
        arguments = ["--json", "--kind", "reclaim", "--pods", str(manifest), "--node-cgroup", str(node.path)]
        with reader(other), start("trace", "--pod", "default/tight", *arguments) as process:
            assert process.stdout is not None
            first = json.loads(process.stdout.readline())
            later = tight.parent / ("f" * 64)
            later.mkdir()
            with reader(later):
                ids = {first["cgroup_id"]}
                deadline = time.monotonic() + TIMEOUT_S
                while later.stat().st_ino not in ids and time.monotonic() < deadline:
                    line = json.loads(process.stdout.readline())
                    ids.add(line["cgroup_id"])
                    assert (line["kind"], line["owner"]["pod_name"]) == ("reclaim", "tight")
            process.terminate()
            process.communicate(timeout=TIMEOUT_S)
        assert ids == {tight.stat().st_ino, later.stat().st_ino}

    @pytest.mark.slow
    @only_programs
    @pytest.mark.parametrize("of", ["duration", "kind", "cgroup", "pod"])
    def test_what_is_not_asked_for_stays_in_the_kernel(
        self, tight: Path, node: NodeCgroup, manifest: Path, of: str
    ) -> None:
        (idle,) = node.add_pod("idle")
        arguments = {
            "duration": ["--kind", "reclaim", "--min-ms", "60000"],
            "kind": ["--kind", "oom_kill"],
            "cgroup": ["--cgroup", str(idle)],
            "pod": ["--pod", "idle", "--pods", str(node.write_manifest(manifest))],
        }[of]
        shared = ["--seconds", "3", "--since-boot", "--json", "--node-cgroup", str(node.path)]
        (counters,) = lines_of(koordebpf("trace", *arguments, *shared))
        assert counters["programs"]["episodes"] > 0
        assert counters["programs"]["ring_sent"] < counters["programs"]["episodes"]

    @pytest.mark.story
    @only_programs
    def test_the_summary_counts_every_stall_and_names_the_cause(
        self, tight: Path, node: NodeCgroup, manifest: Path, trace_schema: Draft202012Validator
    ) -> None:
        manifest = node.write_manifest(manifest)
        arguments = ["trace", "--summary", "--node-cgroup", str(node.path), "--pods", str(manifest)]
        summaries = lines_of(
            koordebpf(*arguments, "--seconds", str(patience(1.2)), "--every", str(patience(0.5)), "--json")
        )
        assert len(summaries) >= 2
        for summary in summaries:
            trace_schema.validate(summary)
            assert summary["kind"] == "summary"
            assert summary["losses"] == []
        (pod,) = (pod for pod in summaries[0]["pods"] if pod["name"] == "default/tight")
        limit = next(cause for cause in pod["causes"] if cause["cause"] == "limit")
        assert sum(limit["hist"]) == limit["count"] > 0
        assert limit["total_ns"] >= limit["max_ns"] > 0
        ledger = summaries[0]["ledger"]
        assert sum(row["ns"] for row in ledger["rows"]) == ledger["total_ns"]
        assert ("default/tight", "own limit") in {
            (row["victim"]["name"], row["cause"]["kind"]) for row in ledger["rows"]
        }

        text = koordebpf(*arguments, "--seconds", str(patience(0.5)))
        assert text.returncode == 0, text.stderr
        assert re.search(r"^default/tight .* (m|µ)?s$", text.stdout, re.MULTILINE)
        assert "default/tight: reclaim at a limit below the node" in text.stdout
        assert "← its own limit" in text.stdout
        assert max(map(len, text.stdout.splitlines())) <= 80

    def test_counters_since_boot(self, node: NodeCgroup, trace_schema: Draft202012Validator) -> None:
        (counters,) = lines_of(koordebpf("trace", "--since-boot", "--seconds", "0", "--json", "--kind", "oom_kill"))
        trace_schema.validate(counters)
        boot = {each["name"]: each["since_boot"] for each in counters["vmstat"]}
        rows = dict(line.split() for line in Path("/proc/vmstat").read_text().splitlines())
        assert 0 <= boot["pgmajfault"] <= int(rows["pgmajfault"])
        assert boot["oom_kill"] <= int(rows["oom_kill"])
        text = koordebpf("trace", "--since-boot", "--seconds", "0", "--kind", "oom_kill").stdout
        assert max(map(len, text.splitlines())) <= 80
        assert "SINCE BOOT" in text

    @pytest.mark.slow
    @only_programs
    def test_what_was_lost_is_said_at_the_end(self, tight: Path, node: NodeCgroup) -> None:
        process = start("trace", "--kind", "reclaim", "--json", "--node-cgroup", str(node.path))
        assert process.stdout is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        # The ring holds 2,700 of these records. What another one sees, the stopped one is sent too.
        arguments = ["--count", "5000", "--kind", "reclaim", "--node-cgroup", str(node.path)]
        assert len(koordebpf("trace", *arguments).stdout.splitlines()) == 5001
        process.send_signal(signal.SIGCONT)
        process.terminate()
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 0
        lost = re.search(r"^(\d+) records were lost: the ring was full$", err, re.MULTILINE)
        assert lost is not None, err
        assert int(lost[1]) > 1_000
        assert all(json.loads(line)["kind"] == "reclaim" for line in out.splitlines()[1:])

    @only_programs
    def test_a_reader_that_closes_its_end_ends_it(self, tight: Path, node: NodeCgroup) -> None:
        process = start("trace", "--kind", "reclaim", "--node-cgroup", str(node.path))
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith("TIME ")
        process.stdout.close()
        assert process.wait(timeout=TIMEOUT_S) == 141
        assert "Traceback" not in process.stderr.read()
        process.stderr.close()

    def test_the_backend_may_be_chosen(self, memory_cgroup: Path) -> None:
        command = ["trace", "--backend", "files", "--kind", "cgroup_mkdir", "--cgroup", str(memory_cgroup)]
        refused = koordebpf("trace", "--backend", "fast")
        assert refused.returncode == 2
        with start(*command[:5], "--count", "1") as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("TIME ")
            at = 0
            while not select.select([process.stdout], [], [], 0.2)[0] and at < 1000:
                (memory_cgroup / f"born{at}").mkdir()
                at += 1
            assert " born " in process.stdout.readline()
            process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 0

    @pytest.mark.parametrize(
        "arguments",
        [
            ("--summary", "--count", "3"),
            ("--every", "3"),
            ("--kind", "rumour"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, arguments: tuple[str, ...]) -> None:
        done = koordebpf("trace", *arguments)
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def provoke(node: NodeCgroup, victim: Path, hierarchy: MemoryHierarchy) -> None:
    """Create, rename and remove a cgroup, and let a process move there and be killed for a limit."""
    born = node.path / "kubepods/besteffort/podborn"
    born.mkdir()
    if hierarchy.version == 1:
        born = born.rename(born.with_name("podrenamed"))
    born.rmdir()
    command = [sys.executable, "-c", HOLDER, str(victim / "cgroup.procs"), "64"]
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False, timeout=TIMEOUT_S)


class TestTop:
    @pytest.mark.slow
    def test_it_shows_what_a_pod_holds(self, node: NodeCgroup, tmp_path: Path) -> None:
        (container,) = node.add_pod("hog")
        node.add_pod("idle", be=False)
        manifest = node.write_manifest(tmp_path / "pods.json", 80, 75)
        node.add_pod("unlisted")
        arguments = ["--pods", str(manifest), "--node-cgroup", str(node.path)]
        # One MiB more than is looked for: each CPU holds back some pages on their way to the LRU.
        with Load(HOLDER, container, 65):
            done = koordebpf("top", "--once", "--json", *arguments)
            frame = koordebpf("top", "--frame", *arguments)
            page = koordebpf("top", "--once", *arguments)
            containers = koordebpf("top", "--once", "--json", "--level", "container", *arguments)
            cgroups = koordebpf("top", "--once", "--json", "--level", "cgroup", "--sort", "name", *arguments)
        (shown,) = lines_of(done)
        rows = {row["name"]: row for row in shown["rows"]}
        assert 64 * MIB <= rows["default/hog"]["used_bytes"] < 100 * MIB
        assert (rows["default/hog"]["qos"], rows["default/idle"]["qos"]) == ("BE", "LS")
        assert rows["default/idle"]["used_bytes"] < MIB
        stray = next(name for name in rows if name.startswith("? pod"))
        assert rows[stray]["used_bytes"] < MIB
        assert shown["node"]["total_bytes"] == 512 * MIB
        assert shown["node"]["used_bytes"] >= 64 * MIB
        assert shown["threshold_bytes"] == pytest.approx(512 * MIB * 0.8, abs=1)
        assert "default/hog" in page.stdout
        assert "evicts above 410 MiB" in page.stdout
        assert max(map(len, page.stdout.splitlines())) <= 80
        (tmp_path / "frame.json").write_text(frame.stdout)
        plan = koordebpf("plan", str(tmp_path / "frame.json"), "--json")
        assert json.loads(plan.stdout)["features"][0]["verdict"]["evidence"]["of"] == 512 * MIB

        by_container = {row["name"]: row for row in lines_of(containers)[0]["rows"]}
        assert 64 * MIB <= by_container["default/hog[c0]"]["used_bytes"] < 100 * MIB
        by_cgroup = {row["name"]: row for row in lines_of(cgroups)[0]["rows"]}
        assert by_cgroup["the node"]["limit_bytes"] == 512 * MIB
        assert by_cgroup["kubepods/besteffort"]["used_bytes"] >= 64 * MIB
        assert by_cgroup["kubepods/burstable"]["used_bytes"] < MIB

    @pytest.mark.slow
    def test_its_json_is_what_its_schema_says(self, tight: Path, node: NodeCgroup) -> None:
        validator = Draft202012Validator(json.loads(koordebpf("top", "--schema").stdout))
        for level in ("pod", "container", "cgroup"):
            arguments = ["--level", level, "--interval", "0.3", "--node-cgroup", str(node.path)]
            (shown,) = lines_of(koordebpf("top", "--once", "--json", "--sort", "stall", *arguments))
            validator.validate(shown)

    @pytest.mark.slow
    @only_programs
    def test_a_pod_that_thrashes_stalls_at_its_limit_on_its_own_account(
        self, tight: Path, node: NodeCgroup, manifest: Path
    ) -> None:
        manifest = node.write_manifest(manifest)
        arguments = ["top", "--once", "--interval", "3", "--node-cgroup", str(node.path), "--pods", str(manifest)]
        (shown,) = lines_of(koordebpf(*arguments, "--json", "--sort", "stall"))
        assert shown["rows"][0]["name"] == "default/tight"
        assert shown["rows"][0]["limit_stall_ns"] > 0
        assert shown["rows"][0]["shares"]["some"]["total_us"] > 0
        pairs = {(row["victim"]["name"], row["cause"]["kind"]) for row in shown["ledger"]["rows"]}
        assert ("default/tight", "own limit") in pairs
        ledger = koordebpf(*arguments, "--ledger").stdout
        assert re.search(r"^default/tight/c0 +← its own limit +[0-9.]+ ", ledger, re.MULTILINE)
        assert max(map(len, ledger.splitlines())) <= 80

    def test_without_a_terminal_it_prints_page_after_page_until_it_is_stopped(self, node: NodeCgroup) -> None:
        process = start("top", "--interval", "0.1", "--node-cgroup", str(node.path))
        assert process.stdout is not None
        seen = ""
        while seen.count("\nPOD ") < 3:
            seen += process.stdout.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, err) == (0, "")
        assert "\x1b" not in seen + out

    def test_on_a_dumb_terminal_it_prints_page_after_page(self, node: NodeCgroup) -> None:
        master, slave = pty.openpty()
        command = [sys.executable, "-m", "koordebpf", "top", "--interval", "0.1", "--node-cgroup", str(node.path)]
        process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=ENV | {"TERM": "dumb"})
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            seen = "".join(read_until(master, "\nPOD ", decoder) for _ in range(3))
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=TIMEOUT_S)
            os.close(master)
            os.close(slave)
        assert seen.count("\nPOD ") >= 3
        assert "\x1b" not in seen

    def test_on_a_terminal_keys_choose_and_it_is_restored(self, tight: Path, node: NodeCgroup) -> None:
        master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
        before = termios.tcgetattr(slave)
        command = [sys.executable, "-m", "koordebpf", "top", "--interval", "0.2", "--node-cgroup", str(node.path)]
        process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=ENV | {"TERM": "xterm-256color"},
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        screen, decoder = "", codecs.getincrementaldecoder("utf-8")()
        try:
            for key, expected in (
                ("", "POD "),
                ("v", "CONTAINER "),
                ("v", "CGROUP "),
                ("l", "ON ACCOUNT OF"),
                ("s", "CGROUP "),
            ):
                os.write(master, key.encode())
                screen += read_until(master, expected, decoder)
            os.write(master, b"q")
            screen += read_until(master, "\x1b[?1049l", decoder)
            assert process.wait(timeout=TIMEOUT_S) == 0
        finally:
            process.kill()
            process.wait()
        assert termios.tcgetattr(slave) == before
        assert "\x1b[2J" not in screen
        assert screen.index("\x1b[?1049h") < screen.index("POD ")
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.replace("\x1b[H", "\n").replace("\r", ""))
        assert max(map(len, plain.splitlines())) <= 80
        os.close(master)
        os.close(slave)


def read_until(fd: int, text: str, decoder: codecs.IncrementalDecoder) -> str:
    """Return what a terminal shows until it shows `text`."""
    seen = ""
    deadline = time.monotonic() + TIMEOUT_S
    while text not in seen and time.monotonic() < deadline:
        if select.select([fd], [], [], 1)[0]:
            seen += decoder.decode(os.read(fd, 1 << 16))  # which may end within a character
    assert text in seen
    return seen


class TestDoctor:
    def test_it_says_how_each_signal_is_obtained(self) -> None:
        done = koordebpf("doctor", "--json")
        report = json.loads(done.stdout)
        assert done.returncode == report["exit_code"] == {"all": 0, "degraded": 1}[report["health"]]
        by_name = {source["signal"]: source for source in report["sources"]}
        assert by_name["memory controller"]["works"]
        assert by_name["cgroup births and deaths"]["works"]
        (taken,) = (each["name"] for each in report["backends"] if each["taken"])
        assert taken == ENV.get(BACKEND_VARIABLE, taken)
        assert [each["name"] for each in report["backends"]] == ["co-re", "bcc", "files"]
        assert all(each["taken"] or each["reason"] for each in report["backends"])
        for source in report["sources"]:
            assert source["works"] or (source["reason"] and source["remedy"] and source["cost"]), source
        text = koordebpf("doctor")
        assert text.returncode == done.returncode
        assert max(map(len, text.stdout.splitlines())) <= 80
        assert text.stdout.count("\n-- ") == sum(not source["works"] for source in report["sources"])

    def test_each_fault_has_a_hint(self) -> None:
        report = json.loads(koordebpf("doctor", "--json").stdout)
        fixes = {fix["signal"]: fix for fix in report["fixes"]}
        for source in report["sources"]:
            assert bool(source["reason"]) is (source["signal"] in fixes)
        assert all(fix["fixes"] or fix["otherwise"] for fix in fixes.values())
        text = koordebpf("doctor", "--fix").stdout
        assert max(map(len, text.splitlines())) <= 80
        for fix in fixes.values():
            for change in fix["fixes"]:
                assert all(line in text for line in change["command"].splitlines())

    def test_without_capabilities_it_names_them_and_the_files_are_read(self) -> None:
        done = koordebpf(
            "doctor", "--json", "--backend", "auto", prefix=("setpriv", "--bounding-set", "-all", "--inh-caps", "-all")
        )
        report = json.loads(done.stdout)
        assert (done.returncode, report["health"]) == (1, "degraded"), report["backends"]
        backends = {each["name"]: each for each in report["backends"]}
        assert backends["files"]["taken"]
        assert backends["co-re"]["failed"]
        changes = [change for fix in report["fixes"] if fix["signal"] == "backend co-re" for change in fix["fixes"]]
        assert any(change["kind"] == "capability" and "CAP_BPF" in change["what"] for change in changes)
        assert any("add: [BPF, PERFMON" in change["command"] for change in changes)

    def test_without_a_cgroup_file_system_it_cannot_run_and_says_what_to_mount(self) -> None:
        script = "awk '$3 ~ /^cgroup/ {print $2}' /proc/mounts | xargs -n 1 umount -l 2>/dev/null; exec \"$@\""
        done = koordebpf("doctor", "--json", prefix=("unshare", "-m", "sh", "-c", script, "sh"))
        report = json.loads(done.stdout)
        assert (done.returncode, report["health"]) == (2, "cannot")
        assert not any(each["taken"] for each in report["backends"])
        (fix,) = report["fixes"][:1]
        assert fix["signal"] == "memory controller"
        assert fix["fixes"][0]["command"].startswith("mount -t cgroup2 ")

    @pytest.mark.slow
    def test_it_says_which_policies_can_hold_the_best_effort_pods_of_a_node(self, node: NodeCgroup) -> None:
        node.add_pod("be")
        command = ("doctor", "--json", "--node-cgroup", str(node.path))

        def policies(*prefix: str) -> dict[str, Any]:
            report = json.loads(koordebpf(*command, prefix=prefix).stdout)
            listed = {each["signal"].removeprefix("suppression by "): each for each in report["sources"]}
            return {policy: listed[policy] for policy in ("cpuset", "cfsQuota", "cpuIdle", "CPU usage")}

        # On v1 the node is in the memory hierarchy alone, on v2 nothing is handed down to it.
        assert not any(each["works"] for name, each in policies().items() if name != "CPU usage")
        live = or_skipped(lambda: LiveNode(node))
        try:
            held = policies()
            assert held["cfsQuota"]["how"].startswith(f"{live.quota_file.name}, cgroup v")
            assert held["cpuset"]["works"] is ((os.cpu_count() or 1) > 2)
            assert held["cpuIdle"]["works"] and held["CPU usage"]["works"]
            mount = live.hierarchies.mounts["cpu"].mount_point
            script = f'mount --bind {mount} {mount} && mount -o remount,bind,ro {mount} && exec "$@"'
            quota = policies("unshare", "-m", "sh", "-c", script, "sh")["cfsQuota"]
            assert not quota["works"]
            assert quota["reason"] == f"Read-only file system at {live.quota_file}"
        finally:
            live.close()

    def test_a_backend_is_tried_alone(self) -> None:
        report = json.loads(koordebpf("doctor", "--json", "--backend", "files").stdout)
        assert [each["name"] for each in report["backends"] if each["taken"]] == ["files"]
        assert all("files is wanted" in each["reason"] for each in report["backends"] if not each["taken"])

    def test_it_names_the_rule_of_a_bad_node_cgroup(self) -> None:
        done = koordebpf("doctor", "--node-cgroup", "no/such/cgroup")
        assert done.returncode == 2
        assert done.stderr.startswith("koordebpf: --node-cgroup: 'no/such/cgroup': must name a cgroup below ")
        assert "Traceback" not in done.stderr
