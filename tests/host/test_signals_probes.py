"""Programs that are lost while the agent runs, and backends that fail while they start."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koordebpf.errors import SupportError
from koordebpf.events.layout import check_layout, decode_totals
from koordebpf.kernel.backends.co_re import KernelSignals
from koordebpf.kernel.bpf import libbpf
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kernel.signals import SignalRequest
from tests.host.provoke import MIB, in_cgroup, set_limit, stall_of
from tests.host.test_signals_filters import read_a_file
from tests.support.bpf_ids import held_by, wait_for_none
from tests.support.patience import patience

RECLAIM_BEGIN = "on_mm_vmscan_memcg_reclaim_begin"


@pytest.fixture
def request_for(memory_cgroup: Path, hierarchy: MemoryHierarchy) -> SignalRequest:
    return SignalRequest(
        hierarchy_version=hierarchy.version,
        hierarchy_id=hierarchy.hierarchy_id,
        mount_point=hierarchy.mount_point,
        root=memory_cgroup,
        node_cgroup_id=None,
        node_level=len(memory_cgroup.relative_to(hierarchy.mount_point).parts),
    )


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Give the fds of the links that are made from now on, by program."""
    made: dict[str, int] = {}
    links_of = libbpf.Object.links

    def remember(self: libbpf.Object) -> dict[str, int]:
        made.update(links_of(self))
        return dict(made)

    monkeypatch.setattr(libbpf.Object, "links", remember)
    return made


def test_a_link_that_is_gone_is_noticed(memory_cgroup: Path, request_for: SignalRequest, links: dict[str, int]) -> None:
    set_limit(memory_cgroup, 8 * MIB)
    with KernelSignals(request_for, check_layout) as signals:
        assert signals.lost_probes() == []
        # The last fd of a link is what keeps it: another file in its place, so that no other file is closed in the end.
        null = os.open("/dev/null", os.O_RDONLY)
        os.dup2(null, links[RECLAIM_BEGIN], inheritable=False)
        os.close(null)
        before = decode_totals(signals.totals())
        assert in_cgroup(memory_cgroup, read_a_file) == 0
        row = stall_of(signals, memory_cgroup)
        assert row is None or row.limit.count == 0  # where psi_memstall is seen, there is a row all the same
        assert decode_totals(signals.totals()).unmatched_ends > before.unmatched_ends
        (lost,) = signals.lost_probes()
        assert (lost.signal, lost.works, lost.reason) == ("memcg-limit reclaim stalls", False, "its link is gone")
        assert lost.cost
        assert lost.remedy
        assert signals.lost_probes() == [lost]


def test_nothing_is_left_of_one_that_ran(request_for: SignalRequest) -> None:
    before = held_by(os.getpid())
    with KernelSignals(request_for, check_layout):
        made = held_by(os.getpid())
        assert made != before
    assert held_by(os.getpid()) == before
    assert not wait_for_none(made.without(before).alive, patience(10))


def test_nothing_is_left_of_one_that_was_killed_and_the_next_counts_from_zero(
    memory_cgroup: Path, request_for: SignalRequest
) -> None:
    set_limit(memory_cgroup, 8 * MIB)
    before = held_by(os.getpid())
    ready, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with KernelSignals(request_for, check_layout) as signals:
                in_cgroup(memory_cgroup, read_a_file)
                row = stall_of(signals, memory_cgroup)
                os.write(go, b"r" if row and row.limit.count else b"n")
                signal.pause()
        finally:
            os._exit(1)
    try:
        assert os.read(ready, 1) == b"r"
        made = held_by(pid).without(before)
        assert made.prog and made.map and made.link
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(ready)
        os.close(go)
    assert not wait_for_none(made.alive, patience(60))
    with KernelSignals(request_for, check_layout) as signals:
        assert stall_of(signals, memory_cgroup) is None
        assert in_cgroup(memory_cgroup, read_a_file) == 0
        row = stall_of(signals, memory_cgroup)
        assert row is not None
        assert 0 < row.limit.count <= decode_totals(signals.totals()).episodes


def test_nothing_is_left_where_the_layout_is_another(request_for: SignalRequest) -> None:
    seen: list[str] = []

    def refuse_the_last(name: str, layout: tuple[int, object]) -> None:
        seen.append(name)
        if name == "koord_memcg":
            raise SupportError("BPF record", "of another time", "Build it")

    before = held_by(os.getpid())
    with pytest.raises(SupportError, match="of another time"):
        KernelSignals(request_for, refuse_the_last)
    assert len(seen) > 1
    assert held_by(os.getpid()) == before


@pytest.fixture
def fd_limit() -> Iterator[Callable[[int], None]]:
    """Return a function that lets the process open so many fds beside those it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
    free = [number for number in range(len(used) + 101) if number not in used]
    yield lambda more: resource.setrlimit(resource.RLIMIT_NOFILE, (free[more], hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_nothing_is_left_where_it_fails_half_way(request_for: SignalRequest, fd_limit: Callable[[int], None]) -> None:
    before = held_by(os.getpid())
    for fds in range(4, 60, 14):  # some more maps, programs, links each time
        fd_limit(fds)
        with contextlib.suppress(OSError, SupportError), KernelSignals(request_for, check_layout):
            pass
        fd_limit(100)
        assert held_by(os.getpid()) == before


def test_a_machine_that_cannot_have_the_object_says_why(
    request_for: SignalRequest, fd_limit: Callable[[int], None]
) -> None:
    before = held_by(os.getpid())
    fd_limit(8)
    signals = KernelSignals(request_for, check_layout)
    fd_limit(100)
    with signals:
        assert signals.fileno() is None
        assert not signals.can_scan
        assert signals.sources
        assert not any(source.works for source in signals.sources)
        assert all(source.reason and source.cost for source in signals.sources)
        assert (signals.read(), signals.totals(), signals.stalls(), signals.lost_probes()) == ([], b"", [], [])
    assert held_by(os.getpid()) == before
