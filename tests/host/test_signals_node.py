"""Which side of the node's cgroup a stall is on, where user space does not know how deep the node lies."""

from __future__ import annotations

from pathlib import Path

from koordebpf.events.layout import check_layout, decode_totals
from koordebpf.kernel.backends.co_re import KernelSignals
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy, cgroup_id
from koordebpf.kernel.signals import SignalRequest
from tests.host.conftest import make_child
from tests.host.provoke import MIB, in_cgroup, set_limit, stall_of
from tests.host.test_signals_filters import read_a_file


def test_the_programs_learn_how_deep_the_node_lies(memory_cgroup: Path, hierarchy: MemoryHierarchy) -> None:
    inside, outside = (make_child(memory_cgroup, name) for name in ("node", "other"))
    container = make_child(inside, "container")
    for cgroup in (inside, outside):
        set_limit(cgroup, 8 * MIB)
    # As in a cgroup namespace: what is mounted is not the hierarchy's root.
    request = SignalRequest(
        hierarchy_version=hierarchy.version,
        hierarchy_id=hierarchy.hierarchy_id,
        mount_point=memory_cgroup,
        root=inside,
        node_cgroup_id=cgroup_id(inside),
        node_level=1,
    )
    with KernelSignals(request, check_layout) as signals:
        before = decode_totals(signals.totals())
        assert in_cgroup(outside, read_a_file) == 0
        assert stall_of(signals, outside) is None
        assert decode_totals(signals.totals()).ignored > before.ignored
        assert in_cgroup(container, read_a_file) == 0
        row = stall_of(signals, container)
        assert row is not None
        assert row.global_.count > 0  # the node's own limit is the node's shortage
        assert row.limit.count == 0
        assert in_cgroup(outside, read_a_file) == 0
        assert stall_of(signals, outside) is None
