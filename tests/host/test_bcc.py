"""The bcc backend on the running kernel: what is said where it cannot be, and what is left of it however it ends.

That its programs see the same as co-re's is test_signals.py's, run with KOORDEBPF_BACKEND=bcc.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from koordebpf.errors import SupportError
from koordebpf.events.layout import check_layout, decode, decode_totals
from koordebpf.events.records import CgroupMkdir
from koordebpf.kernel.backends import bcc
from koordebpf.kernel.backends.bcc import BccSignals
from koordebpf.kernel.bpf.programs import source_folder
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kernel.signals import SignalRequest
from tests.support.bpf_ids import held_by, wait_for_none
from tests.support.patience import patience
from tests.support.started import StartedSince

HEADERS = Path("/lib/modules", platform.release(), "build")
HAS_HEADERS = HEADERS.is_dir() or Path("/sys/kernel/kheaders.tar.xz").exists()
HAS_BCC = Path("/usr/lib/python3/dist-packages/bcc").is_dir() or importlib.util.find_spec("bcc") is not None
COMPILES = pytest.mark.skipif(
    not (HAS_HEADERS and HAS_BCC), reason="not this kind of machine: it has no kernel headers or no bcc"
)

# Opens the backend, tells that it is open, and waits to be killed.
HOLDER = """
import sys
from pathlib import Path
from koordebpf.events.layout import check_layout
from koordebpf.kernel.signals import SignalRequest
from koordebpf.kernel.backends.bcc import BccSignals
root = Path(sys.argv[1])
signals = BccSignals(SignalRequest(int(sys.argv[2]), int(sys.argv[3]), root, root, None), check_layout)
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def request_of_all(hierarchy: MemoryHierarchy) -> SignalRequest:
    return SignalRequest(
        hierarchy_version=hierarchy.version,
        hierarchy_id=hierarchy.hierarchy_id,
        mount_point=hierarchy.mount_point,
        root=hierarchy.mount_point,
        node_cgroup_id=None,
    )


@pytest.fixture
def nothing_left() -> Iterator[StartedSince]:
    """Hold that this process has the fds it had, no BPF among them, and no child more."""
    before, since = fds(), StartedSince()
    assert not any("bpf" in target for target in before)
    yield since
    assert not since.children()
    assert fds() == before


def fds() -> list[str]:
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own fd
            found.append(str(link.readlink()))
    return sorted(found)


@pytest.mark.skipif(HAS_HEADERS and HAS_BCC, reason="not this kind of machine: it has kernel headers and bcc")
@pytest.mark.usefixtures("nothing_left")
def test_what_is_missing_is_said_in_one_sentence(request_of_all: SignalRequest) -> None:
    with pytest.raises(SupportError) as caught:
        BccSignals(request_of_all, check_layout)
    if HAS_BCC:
        assert str(caught.value) == (
            f"BPF programs by bcc: the running kernel's headers are not installed (no {HEADERS}). "
            f"Install linux-headers-{platform.release()} (Debian, Ubuntu) or kernel-devel (Fedora)."
        )
    else:
        assert "bcc cannot be imported" in str(caught.value)
        assert str(caught.value).endswith("Install python3-bpfcc (Debian, Ubuntu) or python3-bcc (Fedora).")


@COMPILES
def test_the_compiler_is_gone_and_the_programs_stay_until_close(
    request_of_all: SignalRequest, memory_cgroup: Path, nothing_left: StartedSince
) -> None:
    with BccSignals(request_of_all, check_layout) as signals:
        assert not nothing_left.children()
        assert not [row.path for row in psutil.Process().memory_maps() if "LLVM" in row.path or "bcc" in row.path]
        held = held_by(os.getpid())
        assert held.prog and held.map
        created = decode_totals(signals.totals()).births
        (memory_cgroup / "pod").mkdir()
        assert decode_totals(signals.totals()).births > created
        assert [source.signal for source in signals.sources if not source.works] == ["usage of all cgroups in one pass"]
    assert not wait_for_none(held.alive, patience(10))


@COMPILES
def test_nothing_is_left_of_a_killed_agent(hierarchy: MemoryHierarchy) -> None:
    root, version, number = str(hierarchy.mount_point), str(hierarchy.version), str(hierarchy.hierarchy_id)
    agent = subprocess.Popen(
        [sys.executable, "-c", HOLDER, root, version, number], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with agent:
        assert agent.stdout
        try:
            assert agent.stdout.readline() == "open\n"
            held = held_by(agent.pid)
            assert held.prog and held.map and held.alive() == held
        finally:
            agent.kill()
    assert not wait_for_none(held.alive, patience(10))


@COMPILES
def test_nothing_is_left_of_a_child_that_dies_half_way(
    request_of_all: SignalRequest, nothing_left: StartedSince
) -> None:
    def kill_it(_name: str, _layout: object) -> None:
        # Between the maps, which arrived, and the programs, which it would attach next.
        for child in nothing_left.children():
            child.send_signal(signal.SIGKILL)
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    with pytest.raises(SupportError, match="was killed by SIGKILL"):
        BccSignals(request_of_all, kill_it)


@COMPILES
@pytest.mark.usefixtures("nothing_left")
def test_records_of_an_older_layout_are_refused(
    request_of_all: SignalRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = shutil.copytree(source_folder(), tmp_path / "older", ignore=shutil.ignore_patterns("build"))
    header = older / "include" / "koord_events.h"
    text = header.read_text()
    assert "	__u32 is_global;	/* 1: the machine's" in text
    header.write_text(text.replace("	__u32 is_global;	/* 1: the machine's", "	__u64 is_global;	/*", 1))
    monkeypatch.setattr(bcc, "source_folder", lambda: older)
    with pytest.raises(SupportError, match="BPF record koord_reclaim: the object lays it out as"):
        BccSignals(request_of_all, check_layout)


@COMPILES
@pytest.mark.usefixtures("nothing_left")
def test_the_compilers_words_are_reported(
    request_of_all: SignalRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = shutil.copytree(source_folder(), tmp_path / "broken", ignore=shutil.ignore_patterns("build"))
    (broken / "reclaim.bpf.c").write_text("#error this is no program\n")
    monkeypatch.setattr(bcc, "source_folder", lambda: broken)
    with pytest.raises(SupportError, match=r"Failed to compile BPF module.*this is no program"):
        BccSignals(request_of_all, check_layout)


@COMPILES
def test_a_cpu_that_comes_back_is_heard_through_perf_buffers(
    request_of_all: SignalRequest, memory_cgroup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = Path("/sys/devices/system/cpu/cpu1/online")
    if not second.exists():
        pytest.skip("not this kind of machine: it has no second CPU that can be taken away")
    monkeypatch.setenv(bcc.RELEASE_VARIABLE, "5.4")
    cpus = os.sched_getaffinity(0)
    second.write_text("0")
    try:
        with BccSignals(request_of_all, check_layout) as signals:
            second.write_text("1")
            signals.read()
            poll = select.poll()
            poll.register(signals.fileno() or -1, select.POLLIN)
            os.sched_setaffinity(0, {1})
            (memory_cgroup / "pod").mkdir()
            assert poll.poll(10_000)
            created = [record for record in map(decode, signals.read()) if isinstance(record, CgroupMkdir)]
            assert "pod" in {record.name for record in created}
    finally:
        second.write_text("1")
        os.sched_setaffinity(0, cpus)
