"""Fixtures on the running kernel. Everything happens in cgroups of our own below one directory for each run."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest

from koordebpf.act.writer.journal import Journal
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.collect.scope import open_scope
from koordebpf.errors import SupportError
from koordebpf.events.layout import check_layout
from koordebpf.kernel.backends.bcc import BccSignals
from koordebpf.kernel.backends.co_re import KernelSignals
from koordebpf.kernel.backends.select import BACKEND_VARIABLE
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy, cgroup_id, find_memory_hierarchy
from koordebpf.kernel.cgroup.kill import KillTarget, kill_cgroup
from koordebpf.kernel.signals import Backend, SignalRequest
from koordebpf.kube.sources.file import FileSource
from koordebpf.units import NS_PER_S
from tests.host.rigs.cgroups import Cgroups, made_cgroups
from tests.host.rigs.held_node import HeldNode
from tests.host.rigs.live_node import or_skipped
from tests.host.rigs.start import Start
from tests.host.rigs.usage_node import MeasuredUsage, UsageNode, made_usage_node
from tests.host.variants import use_changed_programs
from tests.support.hierarchies import remove_tree
from tests.support.nodes import MIB, NodeCgroup
from tests.support.tracefs import NO_TRACEFS, TRACEFS, mount_tracefs

MakeSignals = Callable[..., Backend]
WatchNode = Callable[..., NodeWatch]

BACKEND = os.environ.get(BACKEND_VARIABLE, "co-re")
_NEVER_SENT_NS = 1 << 62
_number = itertools.count()


@pytest.fixture(scope="session", autouse=True)
def tracefs() -> None:
    """Mount it before any test looks for it. Those that cannot do without are skipped where that fails."""
    mount_tracefs()


@pytest.fixture(scope="session")
def hierarchy() -> MemoryHierarchy:
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes cgroups and loads programs into the kernel")
    try:
        return find_memory_hierarchy()
    except SupportError as error:
        pytest.skip(f"needs a memory cgroup hierarchy: {error}")


@pytest.fixture(scope="session")
def run_cgroup(hierarchy: MemoryHierarchy) -> Iterator[Path]:
    """Give the directory of this test run; the memory controller is on for its children."""
    # Without "bpf" in it: tests look for BPF objects among the links of /proc/self/fd.
    top = hierarchy.mount_point / f"koord-test-{os.getpid()}"
    try:
        if hierarchy.version == 2:
            (hierarchy.mount_point / "cgroup.subtree_control").write_text("+memory")
        top.mkdir()
    except OSError as error:
        pytest.skip(f"needs a memory hierarchy that can be written: {error}")
    if hierarchy.version == 2:
        (top / "cgroup.subtree_control").write_text("+memory")
    yield top
    remove_cgroup(top, hierarchy)


@pytest.fixture
def memory_cgroup(run_cgroup: Path, hierarchy: MemoryHierarchy) -> Iterator[Path]:
    """Give a fresh memory cgroup; whatever runs in it or below it afterwards is killed, and it is removed."""
    path = run_cgroup / f"test-{next(_number)}"
    path.mkdir()
    yield path
    remove_cgroup(path, hierarchy)


@pytest.fixture
def one_cpu() -> Iterator[None]:
    """Let the test run on one CPU, so that what it makes the kernel do comes from that one."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.fixture(scope="session")
def compiled(hierarchy: MemoryHierarchy) -> Iterator[Callable[[SignalRequest], BccSignals]]:
    """Return a function that gives the programs built by bcc, compiled once: a minute in an emulated machine."""
    built: list[BccSignals] = []

    def make(request: SignalRequest) -> BccSignals:
        if not built:
            built.append(BccSignals(request, check_layout))
        built[0].listen_to(request)
        built[0].read()
        return built[0]

    yield make
    for signals in built:
        signals.close()


@pytest.fixture
def make_signals(
    memory_cgroup: Path, hierarchy: MemoryHierarchy, compiled: Callable[[SignalRequest], BccSignals]
) -> Iterator[MakeSignals]:
    """Return a function that loads and attaches the programs; with `measures` the scan of the test's cgroup, too.

    By the backend that KOORDEBPF_BACKEND names; without it by co-re.
    """
    opened: list[KernelSignals] = []

    def make(node: Path | None = None, min_stall_ns: int = 0, *, measures: bool = False) -> Backend:
        root = node or memory_cgroup
        request = SignalRequest(
            hierarchy_version=hierarchy.version,
            hierarchy_id=hierarchy.hierarchy_id,
            mount_point=hierarchy.mount_point,
            root=root,
            node_cgroup_id=cgroup_id(node) if node else None,
            node_level=len(root.relative_to(hierarchy.mount_point).parts),
            min_stall_ns=min_stall_ns,
            measures=measures,
        )
        if BACKEND == "bcc":
            return compiled(request)
        opened.append(KernelSignals(request, check_layout))
        return opened[-1]

    yield make
    for signals in opened:
        signals.close()


@pytest.fixture
def node(memory_cgroup: Path, hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    with NodeCgroup(memory_cgroup, hierarchy.version, 1024 * MIB) as node:
        yield node


@pytest.fixture
def watch_node(
    node: NodeCgroup, hierarchy: MemoryHierarchy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[WatchNode]:
    """Return a function that listens to the node with its pods as they are then; with programs that are changed."""
    opened: list[NodeWatch] = []

    def watch(change: Callable[[str], str] | None = None, *, min_stall_ns: int = _NEVER_SENT_NS) -> NodeWatch:
        if change:
            use_changed_programs(tmp_path, monkeypatch, change)
        source = FileSource([node.write_manifest(tmp_path / "pods.json")])
        opened.append(NodeWatch(open_scope(hierarchy, node.path), source, min_stall_ns))
        source.start(lambda: None)
        opened[-1].cluster()
        return opened[-1]

    yield watch
    for each in opened:
        each.close()


@pytest.fixture
def trace_instance() -> Iterator[Path]:
    if not (TRACEFS / "instances").exists():
        pytest.skip(NO_TRACEFS)
    instance = TRACEFS / "instances" / f"koordebpf-test-{os.getpid()}"
    instance.mkdir()
    yield instance
    instance.rmdir()


def make_child(parent: Path, name: str) -> Path:
    """Make a memory cgroup below another, which on v2 may then hold no processes itself."""
    control = parent / "cgroup.subtree_control"
    if control.exists():
        control.write_text("+memory")
    (parent / name).mkdir()
    return parent / name


def remove_cgroup(path: Path, hierarchy: MemoryHierarchy) -> None:
    """Kill what is in the subtree and remove it, children first."""
    if not path.exists():
        return
    target = KillTarget(memory_path=path, cgroup_id=cgroup_id(path), version=hierarchy.version)
    kill_cgroup(target, deadline_ns=time.monotonic_ns() + 10 * NS_PER_S)
    remove_tree(path)


@pytest.fixture
def cgroups() -> Iterator[Cgroups]:
    """A directory with cpu and cpuset files, for the writer."""
    with made_cgroups() as cgroups:
        yield cgroups


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """The writer's."""
    with Journal(tmp_path / "writes.journal") as journal:
        yield journal


@pytest.fixture
def held(node: NodeCgroup) -> Iterator[HeldNode]:
    """A node with a best-effort pod that uses all CPU it gets."""
    with or_skipped(lambda: HeldNode(node)) as made:
        yield made


@pytest.fixture
def start(held: HeldNode, tmp_path: Path) -> Iterator[Start]:
    """Give that node with a place for an agent's files."""
    with closing(Start(held, tmp_path)) as made:
        yield made


@pytest.fixture
def usage_node() -> Iterator[UsageNode]:
    """Give a node with CPU accounting, without pods."""
    with made_usage_node() as node:
        yield node


@pytest.fixture
def measured_usage(usage_node: UsageNode, tmp_path: Path) -> Iterator[Callable[..., MeasuredUsage]]:
    """Return a function that gives the measuring of that node as it is then."""
    opened: list[MeasuredUsage] = []

    def make(applications: Mapping[str, str] | None = None, *, is_machine: bool = False) -> MeasuredUsage:
        root = None if is_machine else usage_node.node.path
        opened.append(MeasuredUsage(usage_node, tmp_path, applications or {}, root))
        return opened[-1]

    yield make
    for each in opened:
        each.close()
