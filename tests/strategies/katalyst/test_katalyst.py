"""What Katalyst's plugins inside the agent decide from: memory of a node that is a cgroup, NICs, and both together."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from koordebpf.collect.cluster_view import ClusterView
from koordebpf.state.cnr import Cnr, CnrZone
from koordebpf.state.measured import MemoryParts, NodeMeasure
from koordebpf.strategies.katalyst import measure as cnr_module
from koordebpf.strategies.katalyst import measure as module
from koordebpf.strategies.katalyst.measure import KatalystCollector, KatalystMemory, links_of
from koordebpf.strategies.katalyst.values import ImageFs, RootfsMeasured
from tests.support.played_signals import StalledNode

PSI = "some avg10={} avg60=2.00 avg300=1.00 total=1200\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=3\n"
HELD = MemoryParts(700, 1, 2, 3, 4, 5)
NODE = NodeMeasure("cgroup", 1000, 600, None, HELD)


class Rig(StalledNode):
    def __init__(self, root: Path, version: int = 2, kind: str = "cgroup") -> None:
        super().__init__(root, version, kind)  # type: ignore[arg-type]
        self.asked: list[Any] = []
        self.needs = False
        self.memory = KatalystMemory(
            self.watch, self.collector.pressure, self.needs_pods, lambda percent: percent >= 15, counts_steals=True
        )

    def needs_pods(self, found: Any) -> bool:
        self.asked.append(found)
        return self.needs

    def press(self, avg10: float) -> Path:
        directory = self.root / "kubepods" / "burstable"
        directory.mkdir(exist_ok=True)
        (directory / "memory.pressure").write_text(PSI.format(avg10))
        return directory

    def close(self) -> None:
        self.memory.close()
        super().close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with contextlib.closing(Rig(tmp_path)) as made:
        yield made


def test_a_node_that_is_a_cgroup_has_what_its_limit_leaves(rig: Rig):
    measured = rig.memory.measure(NODE, is_round=True)
    assert measured.numa is None
    system = measured.system
    assert system is not None
    assert (system.total_bytes, system.free_bytes, system.available_bytes) == (1000, 300, 400)
    assert system.scale_factor > 0
    assert system.pressure is None
    assert system.stolen_pages is not None
    again = rig.memory.measure(NODE, is_round=False).system
    assert again is not None and again.stolen_pages is None


def test_one_that_is_above_its_limit_has_nothing_left(rig: Rig):
    full = NodeMeasure("cgroup", 500, 600, None, HELD)
    system = rig.memory.measure(full, is_round=True).system
    assert system is not None
    assert (system.free_bytes, system.available_bytes) == (0, 0)


@pytest.mark.parametrize("node", [NodeMeasure("cgroup", 1000, 600), NodeMeasure("cgroup", 1000, None, None, HELD)])
def test_where_the_node_was_not_measured_nothing_is_known(rig: Rig, node: NodeMeasure):
    assert rig.memory.measure(node, is_round=True).system is None


def pressure(rig: Rig) -> float | None:
    system = rig.memory.measure(NODE, is_round=False).system
    assert system is not None
    return system.pressure


def test_pressure_is_that_of_the_burstable_level_that_is_there_now(rig: Rig):
    directory = rig.press(3.5)
    assert pressure(rig) == 3.5
    rig.press(4.5)
    assert pressure(rig) == 4.5
    directory.rename(rig.root / "old")
    assert pressure(rig) is None
    # WHEN kubelet has another driver now, and its level another path
    systemd = rig.root / "kubepods.slice"
    rig.make("kubepods.slice")
    rig.make("kubepods.slice/kubepods-podweb.slice")
    (systemd / "kubepods-burstable.slice").mkdir()
    (systemd / "kubepods-burstable.slice" / "memory.pressure").write_text(PSI.format(6.5))
    (rig.root / "kubepods").rename(rig.root / "left")
    rig.watch.rescan()
    assert pressure(rig) == 6.5


def test_under_pressure_that_of_each_pod_is_read(rig: Rig):
    def of_pods() -> Mapping[str, float] | None:
        system = rig.memory.measure(NODE, is_round=True).system
        assert system is not None
        return system.pods_pressure

    files = {uid: rig.root / "kubepods" / f"pod{uid}" / "memory.pressure" for uid in ("batch", "web")}
    for number, file in enumerate(files.values()):
        file.write_text(PSI.format(number + 0.5))
    rig.press(14.9)
    assert of_pods() is None
    rig.press(15.0)
    # One that is gone is left out
    gone = next(iter(files))
    text = files[gone].read_text()
    files[gone].unlink()
    assert of_pods() == {uid: number + 0.5 for number, uid in enumerate(files) if uid != gone}
    files[gone].write_text(text)
    assert of_pods() == {uid: number + 0.5 for number, uid in enumerate(files)}


def test_v1_has_no_pressure(tmp_path: Path):
    rig = Rig(tmp_path, 1)
    rig.press(3.5)
    assert pressure(rig) is None
    rig.close()


def test_a_scale_factor_that_cannot_be_read_is_said_once(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    for path in (tmp_path / "gone", tmp_path / "odd"):
        (tmp_path / "odd").write_text("x\n")
        monkeypatch.setattr(module, "_SCALE_FACTOR", path)
        for _ in range(2):
            assert rig.memory.measure(NODE, is_round=True).system is None
        assert caplog.text.count(f"plugins: {path}:") == 1


def test_a_machine_has_its_numa_nodes_and_pods_where_they_are_needed(tmp_path: Path):
    rig = Rig(tmp_path, 2, "machine")
    stat = "anon N0=4096 N1=8192\nfile N0=1 N1=1\ninactive_anon N0=4096 N1=8192\nactive_anon N0=0 N1=0\nunevictable N0=0 N1=0\n"  # noqa: E501
    for uid in ("web", "batch"):
        (rig.root / rig.path(uid) / "memory.numa_stat").write_text(stat)
    (rig.root / rig.path("batch") / "memory.numa_stat").unlink()
    node = NodeMeasure("machine", 1 << 40, 1)
    first = rig.memory.measure(node, is_round=True)
    assert first.system is not None and first.system.free_bytes > 0
    assert first.numa and first.numa[0].free_pages > 0 and first.numa[0].total_bytes > 0
    assert first.numa[0].pods == {}
    assert rig.asked == [first.numa]
    if len(first.numa) == 1:  # it changes slowly
        assert rig.memory.measure(node, is_round=False).numa is None
    rig.memory._numa_nodes = 2
    assert rig.memory.measure(node, is_round=False).numa is not None
    rig.needs = True
    numa = rig.memory.measure(node, is_round=True).numa
    assert numa is not None and set(numa[0].pods) == {"web"} and numa[0].pods["web"] > 0
    rig.close()


def zone(name: str) -> CnrZone:
    return CnrZone(name=name)


def test_links_of_nics_that_can_be_seen(monkeypatch: pytest.MonkeyPatch):
    asked: list[str] = []

    def has_link(name: str) -> bool | None:
        asked.append(name)
        return {"up": True, "down": False}.get(name)

    monkeypatch.setattr(cnr_module, "has_link", has_link)
    assert links_of(Cnr(nics=(zone("up"), zone("down"), zone("unseen")))) == {"up": True, "down": False}
    asked.clear()
    links_of(Cnr(nics=tuple(zone(f"n{number}") for number in range(70))))
    assert len(asked) == 64
    assert links_of(Cnr()) == {}


@pytest.mark.parametrize("with_links", [False, True])
def test_everything_is_put_together(rig: Rig, monkeypatch: pytest.MonkeyPatch, with_links: bool):
    monkeypatch.setattr(cnr_module, "has_link", lambda name: True)
    disk = ImageFs("/", 10, 5, 1), RootfsMeasured(0, 1, {})
    cnr = Cnr(nics=(zone("up"),))
    known: Any = SimpleNamespace(cnr=cnr)
    rootfs: Any = SimpleNamespace(measure=lambda: disk)
    measured = KatalystCollector(rig.memory, known, rootfs, with_links=with_links).measure(NODE, is_round=True)
    assert (measured.cnr, measured.image_fs, measured.rootfs) == (cnr, *disk)
    assert measured.links == ({"up": True} if with_links else {})
    assert measured.system is not None
    empty = KatalystCollector(rig.memory, ClusterView(), None, with_links=True).measure(NODE, is_round=True)
    assert (empty.cnr, empty.links, empty.image_fs, empty.rootfs) == (None, {}, None, None)
