"""Whatever files say of CPUs and to strategies, a round is decided, and what is written of it can be read."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.decision.decide_tick import TickFrame, TickSettings, decided_again
from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.decision.strategies import FEATURE_GATES
from koordebpf.errors import KernelProblem, KoordebpfError
from koordebpf.kernel.cgroup.tables import numa_held
from koordebpf.kernel.io.table import field
from koordebpf.kernel.proc.vmstat import Zoneinfo
from koordebpf.printable import json_bytes
from koordebpf.state.guard_facts import GuardFacts
from koordebpf.state.series.store import node_series
from koordebpf.state.view import Frame
from koordebpf.store.recorder.rounds import RoundEncoder, ShardReader, ShardRounds
from koordebpf.store.write_log import audited_write
from koordebpf.strategies.katalyst.values import KatalystMeasured, NumaMemory
from koordebpf.units import NS_PER_S
from tests.properties.test_recordings import HEADER
from tests.properties.test_written_is_read import numbers, pressures, write
from tests.strategies.cpu_burst.test_cpu_burst_collector import CONTAINER, POD
from tests.strategies.cpu_burst.test_cpu_burst_collector import Node as BurstNode
from tests.strategies.page_cache.test_page_cache_collector import Node as CacheNode
from tests.strategies.proactive_reclaim.test_reclaim_collector import Node as TrimNode
from tests.support.values.cpu_nodes import cpu_frame
from tests.trees.test_cpu_collector import BE, BE_POD, LS_POD
from tests.trees.test_cpu_collector import Node as CpuNode

quotas = st.one_of(
    st.builds("{} {}".format, st.one_of(numbers, st.just("max")), numbers),
    st.sampled_from(["", "max", "max 0", "0 0", "-1 100000", "² 100000", "max ²", "1_0 1_0"]),
)
signed = st.one_of(numbers, st.sampled_from(["-9223372036854775808", "-1", "²", "1_0"]))
ticks = st.builds("cpu {0} {0} {1} 0 0 {0} {1} 0 0 0\n".format, numbers, numbers)
cpu_stats = st.builds("usage_usec {}\nnr_periods {}\nnr_throttled {}\n".format, numbers, numbers, numbers)
cpu_files = st.fixed_dictionaries(
    {
        "cpu.max": quotas,
        "cpu.max.burst": signed,
        "cpu.idle": signed,
        "cpu.stat": cpu_stats,
        "cpuacct.usage": signed,
        "cpu.cfs_quota_us": signed,
        "cpu.cfs_period_us": signed,
        "cpuset.cpus": st.sampled_from(["0-3", "", "0,9999999999", "2-1", "\udcff", "x"]),
    }
)
FILES = {
    1: {
        "cpu": ("cpu.cfs_quota_us", "cpu.cfs_period_us", "cpu.idle"),
        "cpuacct": ("cpuacct.usage",),
        "cpuset": ("cpuset.cpus",),
    },
    2: {"cpu": ("cpu.max", "cpu.idle", "cpu.stat"), "cpuset": ("cpuset.cpus.effective",)},
}
cpu_of_looks = st.lists(st.tuples(cpu_files, ticks), min_size=2, max_size=3)


def same_after_files(frame: Frame) -> None:
    """Decide a round of this frame, and expect of a file and a recording that they have the same."""
    now_ns = frame.measured.now_ns
    tick = TickFrame(
        frame=frame,
        settings=TickSettings(),
        guards=GuardFacts(now_ns=now_ns, source="file", pods_synced_ns=now_ns),
        has_cpu=frame.measured.cpu is not None,
    )
    assert decode_frame(encode_frame(frame), "frame") == frame
    decision = decided_again(tick)
    made = ShardRounds(HEADER, with_samples=False)
    records = [made.start(0), *made.add(RoundEncoder().encode(tick, decision, 1), b"", [])]
    reader = ShardReader(b"".join(records))
    found = reader.round(reader.rounds[0])
    assert found is not None, reader.damages
    assert found.tick == tick
    assert found.is_same(decided_again(found.tick))


def with_part(name: str, part: object) -> Frame:
    made = cpu_frame()
    return replace(made, measured=made.measured.with_part(name, part), featureGates=dict.fromkeys(FEATURE_GATES, True))


@pytest.fixture(scope="module", params=[1, 2])
def cpu_node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CpuNode:
    return CpuNode(tmp_path_factory.mktemp("cpus"), request.param)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(looks=cpu_of_looks, is_each_pod=st.booleans())
def test_a_round_of_any_cpu_files_is_written_and_read(
    cpu_node: CpuNode, looks: list[tuple[dict[str, str], str]], *, is_each_pod: bool
) -> None:
    with cpu_node.collector(burst_window_ns=NS_PER_S // 10) as collector:
        for at, (texts, stat) in enumerate(looks):
            for controller, names in FILES[cpu_node.version].items():
                for path in ("kubepods.slice", BE, BE_POD, LS_POD):
                    found = {name: texts[name.removesuffix(".effective")] for name in names}
                    write(cpu_node.mounts[controller].mount_point / path, found)
            write(cpu_node.root, {"stat": stat})
            try:
                measured = collector.collect(at * NS_PER_S, node_series(), each_pod=is_each_pod)
                collector.sample_burst(at * NS_PER_S)
            except KoordebpfError:  # as the sampler: nothing was measured
                continue
            made = cpu_frame()
            same_after_files(replace(made, measured=replace(made.measured, cpu=measured)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(looks=st.lists(cpu_files, min_size=1, max_size=3))
def test_bursts_of_any_cpu_files_are_written_and_read(
    tmp_path_factory: pytest.TempPathFactory, looks: list[dict[str, str]]
) -> None:
    bursting = BurstNode(tmp_path_factory.mktemp("burst"))
    with bursting.collector:
        for at, texts in enumerate(looks):
            for path in ("kubepods", POD, CONTAINER):
                write(bursting.root / path, texts)
            try:
                measured = bursting.collector.measure(at * NS_PER_S)
            except KoordebpfError:
                continue
            same_after_files(with_part("cpuBurst", measured))


refaults = st.fixed_dictionaries(
    {
        "memory.stat": st.lists(numbers, min_size=4, max_size=4).map(
            lambda each: (
                "inactive_file {}\nactive_anon {}\nworkingset_refault_file {}\nworkingset_activate_file {}\n".format(
                    *each
                )
            )
        ),
        "memory.current": numbers,
        "memory.pressure": pressures,
    }
)


@given(looks=st.lists(refaults, min_size=1, max_size=2), vmstat=numbers)
def test_page_cache_and_reclaim_of_any_files_are_written_and_read(
    tmp_path_factory: pytest.TempPathFactory, looks: list[dict[str, str]], vmstat: str
) -> None:
    cached = CacheNode(tmp_path_factory.mktemp("cache"))
    write(cached.vmstat.parent, {"vmstat": f"workingset_refault_file {vmstat}\n"})
    trimmed = TrimNode(tmp_path_factory.mktemp("trim"))
    with cached.collector, trimmed.collector:
        for at, texts in enumerate(looks):
            for directory in (*(cached.directory(uid) for uid in ("be", "ls")), trimmed.directory("be")):
                write(directory, texts)
            try:
                same_after_files(with_part("bePageCacheSuppress", cached.collector.measure((1 + at) * NS_PER_S)))
                same_after_files(with_part("proactiveReclaim", trimmed.collector.measure((1 + 6 * at) * NS_PER_S)))
            except KernelProblem:
                continue


zone_rows = st.lists(numbers, min_size=6, max_size=6)


@given(rows=zone_rows, amounts=st.tuples(numbers, numbers))
def test_numa_nodes_of_any_numbers_are_written_and_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[str], amounts: tuple[str, str]
) -> None:
    folder = tmp_path_factory.mktemp("numa")
    text = (
        "Node 0, zone   Normal\n  pages free {}\n        min {}\n        low {}\n        high {}\n"
        "      nr_zone_inactive_file {}\n      nr_zone_active_file {}\n"
    )
    pod_text = "anon N0={0}\nshmem N0={1}\n"
    write(folder, {"zoneinfo": text.format(*rows), "memory.numa_stat": pod_text.format(*amounts)})
    pods = {"u": held[0]} if (held := numa_held(folder, 2)) else {}
    with Zoneinfo(folder / "zoneinfo") as zones:
        try:
            read = zones.read()
        except KernelProblem:
            return
    found = tuple(
        NumaMemory(
            each.node, 1, each.free_pages, each.min_pages, each.low_pages, each.inactive_file_pages,
            each.active_file_pages, pods,
        )
        for each in read
    )  # fmt: skip
    same_after_files(with_part("katalystEviction", KatalystMeasured(numa=found)))


@given(old=st.binary(max_size=20).map(field), path=st.binary(max_size=20).map(field))
def test_an_audited_write_of_any_bytes_is_read_as_json(old: str, path: str) -> None:
    change = FileChange(path, old, "7\n", WriteResult.WRITTEN, "be", 1)
    (line,) = json_bytes(audited_write(change, "node", 1.5)).splitlines()
    found = json.loads(line)["change"]
    assert (found["path"], found["old"]) == (json.loads(json_bytes(path)), json.loads(json_bytes(old)))
