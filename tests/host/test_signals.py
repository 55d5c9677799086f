"""The BPF programs on the running kernel: provoke N events in a cgroup of our own and find exactly those."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from pathlib import Path

import pytest

from koordebpf.events.layout import decode_totals, kinds_mask
from koordebpf.events.records import CgroupMkdir, CgroupRmdir, OomKill, ReclaimStall
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy, find_controllers
from koordebpf.units import KIB, PAGE_BYTES
from tests.host.conftest import BACKEND, MakeSignals, make_child
from tests.host.provoke import MIB, N, ReclaimSteps, holder, in_cgroup, records, set_limit, stall_of

RSS_BATCH_PAGES = 64  # include/linux/percpu_counter.h percpu_counter_batch; before v6.2 a task's own 64 events

MAX_PAGE_ORDER = 10  # include/linux/mmzone.h, unless the kernel is configured for more


def test_exactly_23_memcg_reclaim_episodes(
    memory_cgroup: Path, make_signals: MakeSignals, trace_instance: Path
) -> None:
    set_limit(memory_cgroup, 16 * MIB)
    steps = ReclaimSteps(trace_instance)

    def work() -> None:
        steps()

    # The worker joins and maps before the programs attach to the first episode that counts.
    signals = make_signals()
    signals.send_kinds(kinds_mask(["reclaim"]))
    before = decode_totals(signals.totals()).episodes
    status = in_cgroup(memory_cgroup, work)
    assert status == 0
    traced = steps.traced.lines()
    assert len(traced) == N

    own = memory_cgroup.stat().st_ino
    stalls = [r for r in records(signals) if isinstance(r, ReclaimStall) and r.cgroup_id == own]
    assert len(stalls) == N
    assert all(r.limit_id == own and not r.is_global for r in stalls)
    assert all(r.delta_ns > 0 and r.nr_reclaimed >= 0 for r in stalls)
    assert all(r.order <= MAX_PAGE_ORDER for r in stalls)
    # Followed by a memcg_id in 7.x.
    traced_pages = [int(line.split("nr_reclaimed=")[1].split()[0]) for line in traced]
    assert [r.nr_reclaimed for r in stalls] == traced_pages

    row = stall_of(signals, memory_cgroup)
    assert row is not None
    assert (row.limit.count, row.global_.count) == (N, 0)
    assert row.limit.total_ns == sum(r.delta_ns for r in stalls)
    assert row.limit.max_ns == max(r.delta_ns for r in stalls)
    assert sum(row.limit.hist) == N
    assert decode_totals(signals.totals()).episodes - before >= N


def rss_in_kernel_log(pids: set[int]) -> dict[int, tuple[int, ...]]:
    """Return anonymous, file and shared pages of each victim, as the kernel's own report has them."""
    said = re.compile(rb"Killed process (\d+) .*anon-rss:(\d+)kB, file-rss:(\d+)kB, shmem-rss:(\d+)kB")
    found: dict[int, tuple[int, ...]] = {}
    log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    try:
        while True:
            try:
                line = os.read(log, 8192)
            except BrokenPipeError:  # overwritten meanwhile: the next read is behind the gap
                continue
            if (match := said.search(line)) and int(match[1]) in pids:
                found[int(match[1])] = tuple(int(kib) * KIB // PAGE_BYTES for kib in match.groups()[1:])
    except BlockingIOError:
        return found
    finally:
        os.close(log)


@pytest.mark.parametrize("is_node", [False, True], ids=["a pod's limit", "the node cgroup's limit"])
def test_exactly_23_oom_kills(memory_cgroup: Path, make_signals: MakeSignals, is_node: bool) -> None:
    child = make_child(memory_cgroup, "container")
    set_limit(memory_cgroup, 16 * MIB)
    own = memory_cgroup.stat().st_ino
    signals = make_signals(node=memory_cgroup if is_node else None)
    signals.send_kinds(kinds_mask(["oom_kill"]))
    pids = set()
    for _ in range(N):
        pid = os.fork()
        if pid == 0:
            (child / "cgroup.procs").write_text(str(os.getpid()))
            bytearray(64 * MIB)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -9
        pids.add(pid)

    kills = [r for r in records(signals) if isinstance(r, OomKill)]
    assert {r.tgid for r in kills} == pids
    assert len(kills) == N
    assert all(r.cgroup_id == child.stat().st_ino and r.limit_id == own and r.is_global is is_node for r in kills)
    logged = rss_in_kernel_log(pids)
    assert logged.keys() == pids
    for kill in kills:
        rss = (kill.anon_rss_pages, kill.file_rss_pages, kill.shmem_rss_pages)
        # The kernel's report adds up what each CPU has not passed on yet; the record does not.
        assert rss == pytest.approx(logged[kill.tgid], abs=RSS_BATCH_PAGES * (os.cpu_count() or 1)), kill
    stalls = stall_of(signals, child)
    assert stalls is not None
    assert (stalls.global_ if is_node else stalls.limit).count > 0
    assert (stalls.limit if is_node else stalls.global_).count == 0


def test_the_victim_of_another_tasks_allocation_is_known(memory_cgroup: Path, make_signals: MakeSignals) -> None:
    fat, greedy = (make_child(memory_cgroup, name) for name in ("fat", "greedy"))
    set_limit(memory_cgroup, 48 * MIB)
    signals = make_signals(node=memory_cgroup)
    with holder(fat, 32 * MIB, oom_score_adj=1000) as pid:
        status = os.waitstatus_to_exitcode(in_cgroup(greedy, lambda: bytearray(32 * MIB)))
    kills = [r for r in records(signals) if isinstance(r, OomKill)]
    assert (kills[0].tgid, kills[0].cgroup_id, kills[0].is_global) == (pid, fat.stat().st_ino, True)
    # It may ask again before the victim's pages are back, and die as well.
    assert [r.cgroup_id for r in kills[1:]] == ([greedy.stat().st_ino] if status == -9 else [])
    assert kills[0].total_vm_pages > 32 * MIB // PAGE_BYTES


def test_reclaim_that_was_asked_for_is_no_pods_stall(memory_cgroup: Path, make_signals: MakeSignals) -> None:
    reclaim = make_child(memory_cgroup, "asked") / "memory.reclaim"
    if not reclaim.exists():
        pytest.skip("not this kind of machine: memory.reclaim is of cgroup v2 (since 5.19)")
    writer = make_child(memory_cgroup, "writer")
    set_limit(writer, 256 * MIB)
    signals = make_signals()
    before = decode_totals(signals.totals())
    with holder(reclaim.parent, 32 * MIB):
        # Without swap there is nothing to reclaim, which the write reports after it tried.
        def write() -> None:
            with contextlib.suppress(OSError):
                reclaim.write_text(str(16 * MIB))

        in_cgroup(writer, write)
    assert stall_of(signals, writer) is None
    assert decode_totals(signals.totals()).ignored > before.ignored
    assert not [r for r in records(signals) if isinstance(r, ReclaimStall) and r.cgroup_id == writer.stat().st_ino]


@pytest.mark.parametrize("is_node", [False, True], ids=["a pod's limit", "the node cgroup's limit"])
def test_throttling_at_memory_high_is_a_limits_stall(
    memory_cgroup: Path, make_signals: MakeSignals, is_node: bool
) -> None:
    child = make_child(memory_cgroup, "container")
    if not (child / "memory.high").exists():
        pytest.skip("not this kind of machine: memory.high is of cgroup v2")
    (memory_cgroup / "memory.high").write_text(str(8 * MIB))
    own = memory_cgroup.stat().st_ino
    signals = make_signals(node=memory_cgroup if is_node else None)

    def read_a_file() -> None:
        with tempfile.TemporaryFile(dir="/var/tmp") as file:
            file.truncate(32 * MIB)
            while file.read(MIB):
                pass

    assert in_cgroup(child, read_a_file) == 0
    stalls = [r for r in records(signals) if isinstance(r, ReclaimStall) and r.cgroup_id == child.stat().st_ino]
    assert stalls
    assert all(r.limit_id == own and r.is_global is is_node for r in stalls)


def test_exactly_23_mkdirs_and_rmdirs(memory_cgroup: Path, make_signals: MakeSignals) -> None:
    signals = make_signals()
    signals.send_kinds(kinds_mask(["cgroup_mkdir", "cgroup_rmdir"]))
    ids = []
    for i in range(N):
        (memory_cgroup / f"pod{i}").mkdir()
        ids.append((memory_cgroup / f"pod{i}").stat().st_ino)
    for i in range(N):
        (memory_cgroup / f"pod{i}").rmdir()
    own = memory_cgroup.stat().st_ino
    seen = [r for r in records(signals) if isinstance(r, CgroupMkdir | CgroupRmdir) and r.parent_id == own]
    created = [r for r in seen if isinstance(r, CgroupMkdir)]
    deaths = [r for r in seen if isinstance(r, CgroupRmdir)]
    assert [(r.cgroup_id, r.name) for r in created] == [(ids[i], f"pod{i}") for i in range(N)]
    assert [(r.cgroup_id, r.name) for r in deaths] == [(ids[i], f"pod{i}") for i in range(N)]


def test_a_long_name_is_marked_as_cut(memory_cgroup: Path, make_signals: MakeSignals) -> None:
    signals = make_signals()
    name = "n" * 200
    (memory_cgroup / name).mkdir()
    (memory_cgroup / name).rmdir()
    mkdir = next(r for r in records(signals) if isinstance(r, CgroupMkdir) and r.name.startswith("nnn"))
    assert mkdir.name_cut
    assert name.startswith(mkdir.name)


def test_short_episodes_are_counted_and_not_sent(
    memory_cgroup: Path, make_signals: MakeSignals, trace_instance: Path
) -> None:
    set_limit(memory_cgroup, 16 * MIB)
    signals = make_signals(min_stall_ns=3_600_000_000_000)
    assert in_cgroup(memory_cgroup, ReclaimSteps(trace_instance)) == 0
    assert not [r for r in records(signals) if isinstance(r, ReclaimStall)]
    row = stall_of(signals, memory_cgroup)
    assert row is not None
    assert row.limit.count == N


def test_episodes_outside_the_node_cgroup_are_ignored(
    memory_cgroup: Path, make_signals: MakeSignals, trace_instance: Path
) -> None:
    inside, outside = (make_child(memory_cgroup, name) for name in ("node", "other"))
    set_limit(outside, 16 * MIB)
    signals = make_signals(node=inside)
    assert in_cgroup(outside, ReclaimSteps(trace_instance)) == 0
    assert stall_of(signals, outside) is None
    assert decode_totals(signals.totals()).ignored >= N


def test_oom_kills_outside_the_node_cgroup_are_ignored(memory_cgroup: Path, make_signals: MakeSignals) -> None:
    inside, outside = (make_child(memory_cgroup, name) for name in ("node", "other"))
    set_limit(outside, 16 * MIB)
    signals = make_signals(node=inside)
    before = decode_totals(signals.totals())
    assert os.waitstatus_to_exitcode(in_cgroup(outside, lambda: bytearray(64 * MIB))) == -9
    assert not [r for r in records(signals) if isinstance(r, OomKill)]
    after = decode_totals(signals.totals())
    assert (after.oom_kills, after.ignored > before.ignored) == (before.oom_kills, True)


def test_cgroups_of_other_hierarchies_are_not_reported(
    memory_cgroup: Path, make_signals: MakeSignals, hierarchy: MemoryHierarchy
) -> None:
    if hierarchy.version != 1:
        pytest.skip("not this kind of machine: cgroup v2 has one hierarchy")
    signals = make_signals()
    other = find_controllers()["pids"].mount_point / f"{memory_cgroup.parent.name}-{memory_cgroup.name}"
    for path in (other, memory_cgroup / other.name):
        path.mkdir()
        path.rmdir()
    seen = [r for r in records(signals) if isinstance(r, CgroupMkdir | CgroupRmdir) and r.name == other.name]
    assert [(type(r), r.parent_id) for r in seen] == [
        (kind, memory_cgroup.stat().st_ino) for kind in (CgroupMkdir, CgroupRmdir)
    ]


def test_a_full_ring_is_counted(memory_cgroup: Path, make_signals: MakeSignals) -> None:
    signals = make_signals()
    first = decode_totals(signals.totals())
    made = 3000  # × 176 bytes and more: twice the ring's 256 KiB
    child = memory_cgroup / "pod"
    for _ in range(made // 2):
        child.mkdir()
        child.rmdir()
    before = decode_totals(signals.totals())
    kept = records(signals)
    after = decode_totals(signals.totals())
    sent, lost = before.ring_sent - first.ring_sent, before.ring_lost - first.ring_lost
    assert lost > 0
    assert sent + lost >= made
    assert sent <= len(kept) <= after.ring_sent - first.ring_sent  # what else happens on the machine is sent too


def bpf_fds() -> list[str]:
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except OSError:  # the listing's own fd
            continue
        if target.startswith("anon_inode:bpf"):
            found.append(target)
    return found


@pytest.mark.skipif(
    BACKEND == "bcc", reason="not this kind of machine: for bcc test_bcc.py asks the same of a fresh one"
)
def test_nothing_stays_attached(make_signals: MakeSignals) -> None:
    before = bpf_fds()
    signals = make_signals()
    assert len(bpf_fds()) > len(before)
    signals.close()
    assert bpf_fds() == before
