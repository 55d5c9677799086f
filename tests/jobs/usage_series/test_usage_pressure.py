"""PSI of pods and containers: who is read when, and under which series it is kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from koordebpf.jobs.usage_series.groups import UsageGroup
from koordebpf.jobs.usage_series.pressure import EVERY_PSI_NS, DerivedPressure, FilePressure, PressureCollector
from koordebpf.state.measured import PsiLine, StallShares
from koordebpf.state.series.kinds import KINDS
from koordebpf.state.series.store import EVERY_NS, node_series

POD = UsageGroup(1, "kubepods/poda", "pod", "a")
CONTAINER = UsageGroup(2, "kubepods/poda/c1", "container", "c1", "a")
PRESSURE = (
    "some avg10={}.50 avg60=0.00 avg300=0.00 total=23\n"
    "full avg10={}.25 avg60=0.00 avg300=0.00 total=5\n"
)  # fmt: skip


def files(tmp_path: Path) -> FilePressure:
    return FilePressure(SimpleNamespace(hierarchy=SimpleNamespace(mount_point=tmp_path)))  # type: ignore[arg-type]


def test_each_resource_has_some_and_full(tmp_path):
    folder = tmp_path / POD.path
    folder.mkdir(parents=True)
    for number, name in enumerate(("cpu", "memory", "io")):
        (folder / f"{name}.pressure").write_text(PRESSURE.format(number, number))
    reader = files(tmp_path)
    assert reader.read(POD) == [
        ("cpu", "some", 0.5),
        ("cpu", "full", 0.25),
        ("mem", "some", 1.5),
        ("mem", "full", 1.25),
        ("io", "some", 2.5),
        ("io", "full", 2.25),
    ]
    reader.close()


@pytest.mark.parametrize("garbage", ["", "some avg10=much\n", "full avg10=0.00 avg60=0.00 avg300=0.00 total=5\n"])
def test_a_file_that_is_missing_or_garbage_leaves_out_its_resource_alone(tmp_path, garbage):
    folder = tmp_path / POD.path
    folder.mkdir(parents=True)
    (folder / "cpu.pressure").write_text("some avg10=3.00 avg60=0.00 avg300=0.00 total=5\n")  # before Linux 5.13
    (folder / "memory.pressure").write_text(garbage)
    reader = files(tmp_path)
    assert reader.read(POD) == [("cpu", "some", 3.0)]
    (folder / "memory.pressure").write_text(PRESSURE.format(1, 0))
    assert ("mem", "some", 1.5) in reader.read(POD)
    assert files(tmp_path).read(CONTAINER) == []
    reader.close()


def test_what_is_derived_says_so_and_what_never_stalled_is_zero():
    line = PsiLine(4.5, 0, 0, 9)
    of = {"a": StallShares(line, None, derived=True)}.get
    reader = DerivedPressure(of, {2: StallShares(line, line, derived=True)}.get, lambda: True)
    assert reader.read(POD) == [("mem", "derived-some", 4.5)]
    assert reader.read(CONTAINER) == [("mem", "derived-some", 4.5), ("mem", "derived-full", 4.5)]
    assert reader.read(UsageGroup(3, "", "pod", "b")) == [("mem", "derived-some", 0.0)]
    assert DerivedPressure(of, {}.get, lambda: False).read(POD) == []


class Reader:
    how = "a test"

    def __init__(self) -> None:
        self.read_at: list[int] = []
        self.kept: list[set[int]] = []

    def read(self, group: UsageGroup) -> list[tuple[str, str, float]]:
        self.read_at.append(group.cgroup_id)
        return [("io", "some", float(group.cgroup_id))]

    def keep_only(self, groups: Mapping[int, UsageGroup]) -> None:
        self.kept.append(set(groups))

    def close(self) -> None:
        """Nothing is open."""


def collector(reader: Reader, groups: list[UsageGroup]) -> PressureCollector:
    made: Any = PressureCollector.__new__(PressureCollector)
    made.__init__(None, None, reader)
    made._groups = SimpleNamespace(by_id={each.cgroup_id: each for each in groups}, refresh=lambda _: True)
    return made


def test_a_turn_takes_ten_passes_and_is_appended_at_its_end():
    groups = [UsageGroup(number, "", "pod", str(number)) for number in range(1, 41)]
    reader, series = Reader(), node_series()
    job = collector(reader, [*groups, UsageGroup(99, "", "best_effort")])
    for second in range(10):
        assert [series.query(("pod_psi", "7", "io", "10", "some"), second * EVERY_NS, EVERY_PSI_NS, "count")] == [0]
        job.collect(second * EVERY_NS, series)
        assert len(reader.read_at) == 4 * (second + 1)
    assert sorted(reader.read_at) == list(range(1, 41))
    assert series.query(("pod_psi", "7", "io", "10", "some"), 9 * EVERY_NS, EVERY_PSI_NS, "latest") == 7
    # The next turn begins ten seconds after this one did.
    job.collect(10 * EVERY_NS, series)
    assert len(reader.read_at) == 44


def test_few_cgroups_wait_for_the_next_turn():
    reader, series = Reader(), node_series()
    job = collector(reader, [POD, CONTAINER])
    for second in range(10):
        job.collect(second * EVERY_NS, series)
    assert len(reader.read_at) == 2
    job.collect(10 * EVERY_NS, series)
    assert len(reader.read_at) == 3
    keys = [("pod_psi", "a", "io", "10", "some"), ("container_psi", "a", "c1", "io", "10", "some")]
    assert [series.query(key, 10 * EVERY_NS, 2 * EVERY_PSI_NS, "latest") for key in keys] == [1, 2]
    assert [len(key) == 1 + len(KINDS[key[0]]) for key in keys] == [True, True]
