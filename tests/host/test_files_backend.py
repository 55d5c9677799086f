"""The signals without BPF, on the running kernel: inotify, memory.events and memory.pressure of cgroups of our own."""

from __future__ import annotations

import os
import re
import select
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.events.layout import decode, decode_stall, decode_totals
from koordebpf.events.records import (
    CgroupMkdir,
    CgroupPopulated,
    CgroupRename,
    CgroupRmdir,
    CgroupStall,
    OomKill,
    Record,
    Totals,
)
from koordebpf.kernel.backends.files import FilesSignals
from koordebpf.kernel.backends.select import open_signals
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy, walk
from koordebpf.kernel.proc.psi import PressureFile
from koordebpf.kernel.signals import SignalRequest, quality_of
from koordebpf.units import MIB
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.host.conftest import make_child
from tests.support.loads.churn import Churn, short_inotify_queue

N = 23
ALL_KINDS = (1 << 12) - 2

Make = Callable[..., FilesSignals]


@pytest.fixture
def request_of(memory_cgroup: Path, hierarchy: MemoryHierarchy) -> Callable[..., SignalRequest]:
    """Return a function that gives the request for the test's cgroup as the root, and as the node if asked for."""

    def request(*, is_node: bool = False) -> SignalRequest:
        return SignalRequest(
            hierarchy_version=hierarchy.version,
            hierarchy_id=hierarchy.hierarchy_id,
            mount_point=hierarchy.mount_point,
            root=memory_cgroup,
            node_cgroup_id=memory_cgroup.stat().st_ino if is_node else None,
            node_level=len(memory_cgroup.relative_to(hierarchy.mount_point).parts),
        )

    return request


@pytest.fixture
def make_signals(request_of: Callable[..., SignalRequest]) -> Iterator[Make]:
    opened: list[FilesSignals] = []

    def make(*, is_node: bool = False, max_watches: int | None = None) -> FilesSignals:
        opened.append(FilesSignals(request_of(is_node=is_node), max_watches))
        opened[-1].send_kinds(ALL_KINDS)
        return opened[-1]

    yield make
    for signals in opened:
        signals.close()


def records(signals: FilesSignals) -> list[Record]:
    return [decode(buf) for buf in signals.read()]


def totals(signals: FilesSignals) -> Totals:
    return decode_totals(signals.totals())


def stall_of(signals: FilesSignals, cgroup: Path) -> CgroupStall | None:
    rows = {stall.cgroup_id: stall for stall in (decode_stall(*item) for item in signals.stalls())}
    return rows.get(cgroup.stat().st_ino)


def watches_of_this_process() -> int:
    infos = [path.read_text() for path in Path("/proc/self/fdinfo").iterdir() if path.exists()]
    return sum(len(re.findall(r"(?m)^inotify wd:", info)) for info in infos)


def run_in(cgroup: Path, work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            (cgroup / "cgroup.procs").write_text(str(os.getpid()))
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def set_limit(cgroup: Path, limit_bytes: int) -> None:
    v2 = cgroup / "memory.max"
    (v2 if v2.exists() else cgroup / "memory.limit_in_bytes").write_text(str(limit_bytes))


def read_a_file_twice() -> None:
    with tempfile.TemporaryFile(dir="/var/tmp") as file:
        file.truncate(48 * MIB)
        for _ in range(2):
            file.seek(0)
            while file.read(MIB):
                pass


def test_exactly_23_mkdirs_and_rmdirs(memory_cgroup: Path, make_signals: Make) -> None:
    signals = make_signals()
    paths = [memory_cgroup / f"pod{i}" for i in range(N)]
    for path in paths:
        path.mkdir()
    ids = [path.stat().st_ino for path in paths]
    assert select.select([signals], [], [], 10)[0]
    created = records(signals)
    for path in paths:
        path.rmdir()
    deaths = records(signals)
    own, level = memory_cgroup.stat().st_ino, totals(signals)
    assert all(isinstance(each, CgroupMkdir) for each in created) and all(
        isinstance(each, CgroupRmdir) for each in deaths
    )
    seen = [(each.cgroup_id, each.parent_id, each.name) for each in created if isinstance(each, CgroupMkdir)]
    assert seen == [(ids[i], own, f"pod{i}") for i in range(N)]
    assert [each.cgroup_id for each in deaths] == ids
    assert (level.births, level.deaths, level.ring_sent, level.ring_lost) == (N, N, 2 * N, 0)
    assert not signals.read()


def test_a_tree_that_is_made_at_once_is_seen_whole_and_parents_first(memory_cgroup: Path, make_signals: Make) -> None:
    signals = make_signals()
    for pod in range(5):
        (memory_cgroup / f"slice/pod{pod}/container").mkdir(parents=True)
    created = [each for each in records(signals) if isinstance(each, CgroupMkdir)]
    known = {memory_cgroup.stat().st_ino}
    for each in created:
        assert each.parent_id in known
        known.add(each.cgroup_id)
    assert sorted(known) == sorted(cgroup_id for cgroup_id, _, _ in walk(memory_cgroup))
    assert {each.level for each in created if each.name == "container"} == {
        next(each.level for each in created if each.name == "slice") + 2
    }


def test_of_two_that_had_one_name_the_second_is_held(memory_cgroup: Path, make_signals: Make) -> None:
    signals = make_signals()
    for _ in range(N):
        (memory_cgroup / "pod").mkdir()
        (memory_cgroup / "pod").rmdir()
    (memory_cgroup / "pod").mkdir()
    own = (memory_cgroup / "pod").stat().st_ino
    assert [each.cgroup_id for each in records(signals)] == [own]
    (memory_cgroup / "pod/container").mkdir()  # its watch is the living one's
    assert [each.name for each in records(signals) if isinstance(each, CgroupMkdir)] == ["container"]
    (memory_cgroup / "pod/container").rmdir()
    (memory_cgroup / "pod").rmdir()
    assert [each.cgroup_id for each in records(signals)][-1] == own


def test_a_rename_keeps_the_id_and_what_is_below(
    memory_cgroup: Path, make_signals: Make, hierarchy: MemoryHierarchy
) -> None:
    if hierarchy.version == 2:
        pytest.skip(f"{OTHER_MACHINE}cgroup v2 renames nothing")
    (memory_cgroup / "before/container").mkdir(parents=True)
    signals = make_signals()
    own = (memory_cgroup / "before").stat().st_ino
    (memory_cgroup / "before").rename(memory_cgroup / "after")
    (rename,) = records(signals)
    assert isinstance(rename, CgroupRename)
    assert (rename.cgroup_id, rename.name) == (own, "after")
    (memory_cgroup / "after/container/more").mkdir()
    assert [each.name for each in records(signals) if isinstance(each, CgroupMkdir)] == ["more"]


def test_watches_go_with_their_cgroups(memory_cgroup: Path, make_signals: Make) -> None:
    signals = make_signals()
    before = watches_of_this_process()
    for _ in range(3):
        for number in range(100):
            (memory_cgroup / f"n{number}").mkdir()
        signals.read()
        time.sleep(0.11)  # so that the new ones are looked into
        signals.read()
        assert watches_of_this_process() >= before + 100
        for number in range(100):
            (memory_cgroup / f"n{number}").rmdir()
        signals.read()
        assert watches_of_this_process() == before


def test_what_an_overflow_hid_is_found(memory_cgroup: Path, make_signals: Make) -> None:
    with short_inotify_queue(256):
        signals = make_signals()
    (memory_cgroup / "dies").mkdir()
    signals.read()
    for _ in range(200):
        (memory_cgroup / "passing").mkdir()
        (memory_cgroup / "passing").rmdir()
    (memory_cgroup / "unseen/container").mkdir(parents=True)
    (memory_cgroup / "dies").rmdir()
    found = records(signals)
    assert [each.name for each in found if isinstance(each, CgroupMkdir)] == ["unseen", "container"]
    assert [each.name for each in found if isinstance(each, CgroupRmdir)] == ["dies"]
    assert totals(signals).ring_lost == 1
    (memory_cgroup / "unseen/container/later").mkdir()
    assert [each.name for each in records(signals) if isinstance(each, CgroupMkdir)] == ["later"]


def test_without_watches_left_it_says_so_and_recovers(memory_cgroup: Path, make_signals: Make) -> None:
    for number in range(5):
        (memory_cgroup / f"n{number}").mkdir()
    signals = make_signals(max_watches=3)
    assert watches_of_this_process() == 3
    assert quality_of(signals).births == "rescanned"
    (lost,) = signals.lost_probes()
    assert "fs.inotify.max_user_watches" in lost.remedy and "have no watch: 3 of at most 3" in lost.reason
    for number in range(5):
        (memory_cgroup / f"n{number}").rmdir()
    signals.read()
    signals.tree.compare()  # each 30 s in `read`
    assert signals.lost_probes() == []
    assert quality_of(signals).births == "watched"


@pytest.mark.parametrize("is_node", [False, True], ids=["a pod's limit", "the node cgroup's limit"])
def test_exactly_23_oom_kills(memory_cgroup: Path, make_signals: Make, is_node: bool) -> None:
    child = make_child(memory_cgroup, "container")
    set_limit(memory_cgroup, 16 * MIB)
    own = memory_cgroup.stat().st_ino
    signals = make_signals(is_node=is_node)
    for _ in range(N):
        assert run_in(child, lambda: bytearray(64 * MIB)) == -9
    kills: list[OomKill] = []

    def all_are_reported() -> bool:
        kills.extend(each for each in records(signals) if isinstance(each, OomKill))
        return len(kills) >= N

    until(all_are_reported, "the kills")
    for _ in range(3):  # it looks no more often than each 100 ms
        time.sleep(0.11)
        assert all_are_reported() and len(kills) == N
    assert {(each.cgroup_id, each.limit_id, each.is_global) for each in kills} == {(child.stat().st_ino, own, is_node)}
    assert totals(signals).oom_kills >= N


def test_populated_changes_are_reported(memory_cgroup: Path, make_signals: Make, hierarchy: MemoryHierarchy) -> None:
    if hierarchy.version == 1:
        pytest.skip(f"{OTHER_MACHINE}cgroup v1 does not report whether a cgroup is populated")
    child = make_child(memory_cgroup, "container")
    own = child.stat().st_ino
    signals = make_signals()
    for _ in range(3):
        go = os.pipe()
        pid = os.fork()
        if pid == 0:
            (child / "cgroup.procs").write_text(str(os.getpid()))
            os.read(go[0], 1)
            os._exit(0)
        for is_populated in (True, False):
            until(lambda: select.select([signals], [], [], 0)[0], "the event")
            seen: list[CgroupPopulated] = []
            until(
                lambda seen=seen: (
                    seen.extend(
                        each for each in records(signals) if isinstance(each, CgroupPopulated) and each.cgroup_id == own
                    )
                    or seen
                ),
                "populated",
            )
            assert [each.populated for each in seen] == [is_populated]
            if is_populated:
                os.write(go[1], b"g")
                os.waitpid(pid, 0)
        os.close(go[0])
        os.close(go[1])
    assert totals(signals).populated >= 6


def test_a_limit_that_is_hit_is_that_cgroups_own(
    memory_cgroup: Path, make_signals: Make, hierarchy: MemoryHierarchy
) -> None:
    calm, child = make_child(memory_cgroup, "calm"), make_child(memory_cgroup, "container")
    set_limit(child, 8 * MIB)
    signals = make_signals()
    before = totals(signals).episodes
    assert run_in(child, read_a_file_twice) == 0
    time.sleep(0.11)
    signals.read()
    until(lambda: stall_of(signals, child), "the row")
    stall = stall_of(signals, child)
    assert stall is not None and stall.limit.count > 0
    assert stall.global_.total_ns == 0
    assert stall_of(signals, calm) is None
    assert totals(signals).episodes - before >= stall.limit.count
    if hierarchy.version == 1:
        assert stall.limit.count == int((child / "memory.failcnt").read_text())
        assert stall.limit.total_ns == stall.some_ns == 0  # nothing times them
        return
    events = dict(line.split() for line in (child / "memory.events").read_text().splitlines())
    assert stall.limit.count == int(events["max"]) + int(events["high"])
    with PressureFile(child / "memory.pressure") as pressure:
        assert stall.some_ns == pressure.read().some.total_us * 1_000 == stall.limit.total_ns > 0
    parent = stall_of(signals, memory_cgroup)
    assert parent is None or (parent.limit.total_ns, parent.global_.total_ns) == (0, 0)


def test_only_what_is_wanted_is_sent_and_all_is_counted(memory_cgroup: Path, make_signals: Make) -> None:
    signals = make_signals()
    signals.send_kinds(1 << 4)  # deaths
    (memory_cgroup / "pod").mkdir()
    assert records(signals) == []
    (memory_cgroup / "pod").rmdir()
    assert [type(each) for each in records(signals)] == [CgroupRmdir]
    assert (totals(signals).births, totals(signals).deaths) == (1, 1)


def test_nothing_stays_open(request_of: Callable[..., SignalRequest]) -> None:
    before = sorted(os.listdir("/proc/self/fd"))  # noqa: PTH208
    signals = FilesSignals(request_of())
    signals.close()
    signals.close()
    assert sorted(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_it_is_a_backend_that_can_be_asked_for(request_of: Callable[..., SignalRequest]) -> None:
    def never(name: str, layout: object) -> None:
        raise AssertionError(f"{name}: there is no layout to check")

    backend = open_signals(request_of(), never, "files")
    try:
        assert backend.name == "files"
        assert not backend.can_scan
        quality = quality_of(backend)
        assert (quality.births, quality.scan) == ("watched", "files")
        assert quality.stalls in ("pressure", "counted")
    finally:
        backend.close()


def rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["co-re", "files"])
def test_the_index_is_right_after_a_thousand_mkdirs_a_second(
    memory_cgroup: Path, hierarchy: MemoryHierarchy, backend: str
) -> None:
    set_limit(memory_cgroup, 256 * MIB)
    scope = open_scope(hierarchy, memory_cgroup)
    with NodeWatch(scope, None, 1 << 62, backend=backend) as watch:  # type: ignore[arg-type]
        before = rss_bytes()
        churn = Churn(memory_cgroup, per_s=1000, seconds=3)
        while not churn.is_over():
            select.select([watch.signals], [], [], 0.1)
            watch.drain()
        assert churn.rate() * 3 > 60  # some died too, on however slow a machine

        def is_right() -> bool:
            watch.drain()
            return {each for each, _, _ in walk(memory_cgroup)} == set(watch.index)

        until(is_right, "the index")
        assert watch.undecodable == 0
        assert rss_bytes() - before < 32 * MIB
        assert watch.totals() is not None
        for path in memory_cgroup.iterdir():
            if path.is_dir():
                path.rmdir()
        until(lambda: watch.drain() is not None and len(watch.index) == 1, "the last deaths")
