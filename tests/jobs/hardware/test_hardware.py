"""Collectors of hardware counters beside the loop: whose processes are whose, turns, and looks that fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from koordebpf.errors import CgroupGone, SupportError
from koordebpf.jobs.hardware import cpi as cpi_module
from koordebpf.jobs.hardware.cpi import MOST_FDS, CpiCollector
from koordebpf.jobs.hardware.gpu import GpuCollector, usage
from koordebpf.jobs.hardware.loop import ContainerCgroup, ThreadedCollector, containers_of
from koordebpf.kernel.host.gpu import Gpu, GpuProcess
from koordebpf.state.series.kinds import CONTAINER_CPI, SeriesKey
from koordebpf.state.series.store import NodeSeries, node_series
from koordebpf.units import NS_PER_MS, NS_PER_S
from tests.contract.apiserver import until
from tests.support.played_signals import StalledNode

A, B = ContainerCgroup("web", "a", "pods/web/a"), ContainerCgroup("web", "b", "pods/web/b")
GPU, IDLE = Gpu(0, "GPU-0", 1000), Gpu(1, "GPU-1", 2000)


def test_containers_are_those_of_known_pods(tmp_path: Path):
    node = StalledNode(tmp_path)
    node.make("kubepods/podstray")
    node.make("kubepods/podstray/" + "d" * 64)
    node.watch.rescan()
    assert {(each.uid, each.container_id[0], each.path) for each in containers_of(node.watch)} == {
        (uid, letter, node.path(uid, letter)) for uid, letter in (("web", "a"), ("web", "b"), ("batch", "c"))
    }
    node.close()


class Driver:
    """What is asked of `Nvml`."""

    gpus = (GPU, IDLE)

    def __init__(self) -> None:
        self.found: tuple[GpuProcess, ...] = ()
        self.closed = 0

    def processes(self) -> tuple[GpuProcess, ...]:
        return self.found

    def close(self) -> None:
        self.closed += 1


class TestGpu:
    def collector(self, root: Path, **pids: str) -> tuple[GpuCollector, Driver]:
        for one in (A, B):
            (root / one.path).mkdir(parents=True)
            (root / one.path / "cgroup.procs").write_text(pids.get(one.container_id, ""))
        driver: Any = Driver()
        return GpuCollector(driver, lambda: [A, B], root), driver

    def test_sums_of_a_gpu_are_the_nodes_the_pods_and_the_containers(self):
        processes = [GpuProcess(GPU, 1, 30, 100), GpuProcess(GPU, 2, 20, None), GpuProcess(GPU, 3, 5, 7)]
        found = usage(processes, {1: A, 2: B, 3: None}, (GPU, IDLE))
        by_kind = {(key[0].removesuffix("_usage"), *key[1:]): value for key, value in found.items()}
        assert sorted(by_kind.values()) == sorted(
            [55.0, 107.0, 1000.0, 50.0, 100.0, 30.0, 100.0, 20.0, 0.0, 0.0, 2000.0],
        )
        assert all(key[-1] == "GPU-1" for key, value in by_kind.items() if value == 0)

    def test_a_process_stays_in_its_container_and_is_found_again_where_that_is_gone(self, tmp_path: Path):
        collector, driver = self.collector(tmp_path, a="11\n12\n", b="21\n")
        driver.found = tuple(GpuProcess(GPU, pid, 10, 1) for pid in (11, 21, 99))

        def of(*containers: ContainerCgroup) -> dict[str, float]:
            found = collector.measure(containers)
            return {key[1]: value for key, value in found.items() if key[0].startswith("container_gpu_core")}

        assert of(A, B) == {"a": 10.0, "b": 10.0}
        (tmp_path / A.path / "cgroup.procs").write_text("")
        assert of(A, B) == {"a": 10.0, "b": 10.0}  # it is not looked for again
        driver.found = driver.found[1:]
        of(A, B)
        driver.found = (GpuProcess(GPU, 11, 10, 1),)  # the number is another process's now
        assert of(A, B) == {}
        (tmp_path / B.path / "cgroup.procs").write_text("11\n")
        driver.found = (GpuProcess(GPU, 11, 10, 1), GpuProcess(GPU, 21, 10, 1))
        assert of(A) == {}
        assert of(A, B) == {"b": 10.0}

    def test_a_directory_that_is_gone_hides_no_other(self, tmp_path: Path):
        collector, driver = self.collector(tmp_path, b="21\n")
        (tmp_path / A.path / "cgroup.procs").unlink()
        driver.found = (GpuProcess(GPU, 21, 10, 1),)
        gone = ContainerCgroup("x", "x", "none")
        assert any(key[:2] == ("container_gpu_core_usage", "b") for key in collector.measure([gone, A, B]))
        assert collector.prepare() == [A, B]
        collector.close()
        assert driver.closed == 1


class Looks(ThreadedCollector[int]):
    name, period_ns = "looks", NS_PER_S

    def __init__(self) -> None:
        super().__init__()
        self.go, self.looks, self.released = threading.Event(), 0, 0
        self.failure: Exception | None = None

    def prepare(self) -> int:
        return 7

    def measure(self, prepared: int) -> Mapping[SeriesKey, float]:
        self.looks += 1
        assert self.go.wait(10)
        if self.failure is not None:
            raise self.failure
        return {("node_cold_memory",): float(prepared + self.looks)}

    def release(self) -> None:
        self.released += 1


class Series:
    """Takes what is appended."""

    def __init__(self) -> None:
        self.found: list[tuple[SeriesKey, float]] = []

    def append(self, key: SeriesKey, t_ns: int, value: float) -> None:
        self.found.append((key, value))


def ended(looks: Looks) -> bool:
    return looks._thread is not None and not looks._thread.is_alive()


class TestThreadedCollector:
    def test_a_look_that_waits_holds_up_nothing_and_no_other_begins(self):
        looks, into = Looks(), Series()
        for _ in range(3):
            looks.collect(0, into)  # type: ignore[arg-type]
        assert (looks.looks, into.found) == (1, [])
        looks.go.set()
        until(lambda: ended(looks), "the look")
        looks.collect(0, into)  # type: ignore[arg-type]
        assert into.found == [(("node_cold_memory",), 8.0)]
        until(lambda: ended(looks), "the second look")
        looks.collect(0, into)  # type: ignore[arg-type]
        assert [value for _, value in into.found] == [8.0, 9.0]
        looks.close()
        assert looks.released == 1

    def test_a_look_that_fails_is_said_once_and_again_after_one_that_did_not(self, caplog: pytest.LogCaptureFixture):
        looks, into = Looks(), Series()
        looks.go.set()
        for failure in (OSError("odd"), OSError("odd"), None, SupportError("it", "odd", "Do.")):
            looks.failure = failure
            looks.collect(0, into)  # type: ignore[arg-type]
            until(lambda: ended(looks), "the look")
        assert caplog.text.count("not measured") == 2
        looks.close()

    def test_one_that_hangs_is_left_with_what_it_uses(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr("koordebpf.jobs.hardware.loop._CLOSE_S", 0.01)
        looks = Looks()
        looks.collect(0, Series())  # type: ignore[arg-type]
        looks.close()
        assert looks.released == 0
        looks.go.set()

    def test_closed_before_the_first_look(self):
        looks = Looks()
        looks.close()
        assert looks.released == 1


class CountersOf:
    """In place of `CgroupCounters`: what a directory's file `counts` says."""

    open = 0

    def __init__(self, directory: Path, events: Sequence[Any], cpus: Sequence[int]) -> None:
        if not directory.is_dir():
            raise CgroupGone(str(directory))
        if (directory / "refuses").exists():
            raise SupportError("counters", "this CPU has none", "None.")
        self.directory, self.is_on = directory, False
        CountersOf.open += 1

    def enable(self) -> None:
        self.is_on = True

    def disable(self) -> None:
        assert self.is_on

    def read(self) -> tuple[int, ...] | None:
        text = (self.directory / "counts").read_text().split()
        return tuple(map(int, text)) or None

    def close(self) -> None:
        CountersOf.open -= 1


class TestCpi:
    @pytest.fixture
    def collector(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., CpiCollector]]:
        monkeypatch.setattr(cpi_module, "CgroupCounters", CountersOf)
        made: list[CpiCollector] = []

        def make(*containers: ContainerCgroup, cpus: int = 2) -> CpiCollector:
            made.append(
                CpiCollector(lambda: containers, lambda: range(cpus), tmp_path, window_ns=NS_PER_MS, every_ns=NS_PER_S)
            )
            return made[-1]

        for one, counts in ((A, "500 250"), (B, "")):
            (tmp_path / one.path).mkdir(parents=True)
            (tmp_path / one.path / "counts").write_text(counts)
        yield make
        for each in made:
            each.close()
        assert CountersOf.open == 0

    def counted(self, collector: CpiCollector, series: NodeSeries, now_ns: int) -> None:
        collector.collect(now_ns, series)
        until(lambda: collector._thread is None or not collector._thread.is_alive(), "the window")

    def test_a_window_is_counted_once_a_period_without_what_is_gone(self, collector):
        made, series = collector(A, B, ContainerCgroup("x", "x", "gone")), node_series()
        self.counted(made, series, NS_PER_S)
        first = made._thread
        self.counted(made, series, 2 * NS_PER_S - 1)
        assert made._thread is first
        keys = set(series._series)
        assert keys == {(CONTAINER_CPI, "web", "a", "cycle"), (CONTAINER_CPI, "web", "a", "instruction")}
        self.counted(made, series, 2 * NS_PER_S)
        assert made._thread is not first

    def test_more_than_there_are_fds_for_have_their_turn(self, collector):
        many = [ContainerCgroup("p", str(number), "gone") for number in range(5)]
        made = collector(*many, cpus=MOST_FDS // 4)  # two events each: two containers at once
        turns = [[each.container_id for each in made._chosen(many, MOST_FDS // 4)] for _ in range(3)]
        assert turns == [["0", "1"], ["2", "3"], ["4", "0"]]
        assert made._chosen(many[:2], MOST_FDS // 4) == many[:2]
        assert len(made._chosen(many, MOST_FDS * 2)) == 1
        assert made._chosen(many, 0) == many

    def test_where_there_are_no_counters_it_is_said_once(self, collector, tmp_path, caplog):
        (tmp_path / A.path / "refuses").touch()
        made, series = collector(A, B), node_series()
        for second in (1, 2):
            self.counted(made, series, second * NS_PER_S)
        assert caplog.text.count("this CPU has none") == 1
        (tmp_path / A.path / "refuses").unlink()
        self.counted(made, series, 3 * NS_PER_S)
        self.counted(made, series, 4 * NS_PER_S)
        assert len(set(series._series)) == 2

    def test_where_no_container_has_a_cgroup_the_mount_is_named(self, collector, tmp_path, caplog):
        made, series = collector(ContainerCgroup("x", "x", "gone")), node_series()
        for second in (1, 2):
            self.counted(made, series, second * NS_PER_S)
        assert caplog.text.count(f"no container has a cgroup below {tmp_path}") == 1
