"""Which sets of CPUs are read at which look, on trees of both cgroup versions."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from koordebpf.attribution.index import CgroupIndex
from koordebpf.collect.cpu.collector import BestEffortSets, CgroupCpuFiles
from koordebpf.collect.cpu.owners import cpu_owners
from koordebpf.kernel.cgroup.hierarchy import ControllerMount

BE, PODS = "kubepods/besteffort", tuple(f"kubepods/besteffort/pod{number:02}" for number in range(64))


class Node:
    """A best-effort directory of many pods, each with a container and one more below it."""

    def __init__(self, root: Path, version: int = 2) -> None:
        self.root = root
        self.name = "cpuset.cpus" if version == 1 else "cpuset.cpus.effective"
        self.index = CgroupIndex()
        self.rows = [(1, 0, ""), (2, 1, "kubepods"), (3, 2, BE)]
        self.set(BE, "0-3")
        self.files = CgroupCpuFiles({"cpuset": ControllerMount(version, root)})  # type: ignore[arg-type]
        self.sets = BestEffortSets(self.files)

    def add(self, *paths: str) -> None:
        for path in paths:
            above = next(number for number, _, known in self.rows if known == path.rpartition("/")[0])
            self.rows.append((len(self.rows) + 1, above, path))
            self.set(path, "0-3")

    def set(self, path: str, cpus: str) -> None:
        (self.root / path).mkdir(parents=True, exist_ok=True)
        (self.root / path / self.name).write_text(f"{cpus}\n")

    def watch(self) -> tuple[str, ...]:
        self.index.replace_all(self.rows)
        owners = (self.index.owner(each) for each in self.index)
        return self.sets.watch(cpu_owners(owner for owner in owners if owner is not None))

    def read(self) -> dict[str, tuple[int, ...] | None]:
        return {each.path: each.cpus for each in self.sets.read()}


C = "c" * 64


@pytest.mark.parametrize(("version", "deepest"), [(1, f"{PODS[0]}/{C}/own"), (2, f"{PODS[0]}/{C}")])
def test_below_a_container_sets_count_on_v1_alone(tmp_path: Path, version: int, deepest: str):
    node = Node(tmp_path, version)
    node.add(PODS[0], f"{PODS[0]}/{C}", f"{PODS[0]}/{C}/own")
    paths = node.watch()
    assert paths[0] == BE
    assert paths[-1] == deepest
    found = node.sets.read()
    assert [each.level for each in found[:3]] == ["root", "pod", "container"]
    assert {each.cpus for each in found} == {(0, 1, 2, 3)}
    node.files.close()


def test_the_directory_itself_is_read_each_time_and_the_others_in_turn(tmp_path: Path):
    node = Node(tmp_path)
    node.add(*PODS)
    node.watch()
    assert set(node.read().values()) == {(0, 1, 2, 3)}
    assert node.sets.sets == {(0, 1, 2, 3)}
    # WHEN another process writes into one set
    node.set(PODS[40], "1")
    seen = [node.read()[PODS[40]] for _ in range(30)]
    # THEN it shows within thirty looks, not at once, and stays
    assert seen[0] == (0, 1, 2, 3)
    assert seen[-1] == (1,)
    # WHEN the directory's own changes, THEN every set is read at once
    node.set(PODS[41], "2")
    node.set(BE, "0-2")
    found = node.read()
    assert (found[BE], found[PODS[41]]) == ((0, 1, 2), (2,))
    assert node.sets.sets == {(0, 1, 2)}  # no set of a pod has more


@pytest.mark.parametrize("path", [PODS[0], PODS[63]])
def test_every_set_has_its_turn(tmp_path: Path, path: str):
    node = Node(tmp_path)
    node.add(*PODS)
    node.watch()
    node.read()
    for cpus in ("3", "2"):  # in this turn, and in the one after it
        node.set(path, cpus)
        assert [node.read() for _ in range(31)][-1][path] == (int(cpus),)


def test_one_that_is_gone_is_left_out_and_a_new_one_is_read_at_once(tmp_path: Path):
    node = Node(tmp_path)
    node.add(*PODS[:3])
    shutil.rmtree(tmp_path / PODS[1])
    node.watch()
    assert set(node.read()) == {BE, PODS[0], PODS[2]}
    node.add(PODS[3])
    node.set(PODS[3], "1")
    node.set(PODS[1], "2")
    node.watch()
    found = node.read()
    assert (found[PODS[3]], found[PODS[1]]) == ((1,), (2,))


def test_without_a_best_effort_directory_there_is_nothing(tmp_path: Path):
    node = Node(tmp_path)
    node.rows = [(1, 0, "")]
    assert node.watch() == ()
    assert node.read() == {}
    assert node.sets.sets == frozenset()
