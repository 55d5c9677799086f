"""Whether there is a process in a cgroup or below it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koordebpf.kernel.cgroup.subtree import has_process
from koordebpf.units import NS_PER_S
from tests.support.ticked_node import UIDS, Node

MakeTree = Callable[[dict[str, Any]], Path]


@pytest.mark.parametrize("populated", [0, 1])
def test_v2_says_so_itself(tree: MakeTree, populated: int) -> None:
    root = tree({"pod": {"cgroup.events": f"populated {populated}\nfrozen 0\n", "cgroup.procs": ""}})
    assert has_process(root / "pod", 2) is bool(populated)


def test_on_v1_each_directory_is_looked_into(tree: MakeTree) -> None:
    root = tree({"pod": {"cgroup.procs": "", "a": {"cgroup.procs": ""}, "b": {"cgroup.procs": "", "c": {}}}})
    assert not has_process(root / "pod", 1)
    (root / "pod/b/c/cgroup.procs").write_text("0\n")  # of a pid namespace that is not seen from here
    assert has_process(root / "pod", 1)


def test_more_directories_than_are_looked_into_may_hold_one(tree: MakeTree) -> None:
    root = tree({"pod": {f"c{n}": {"cgroup.procs": ""} for n in range(1023)}})
    assert has_process(root / "pod", 1)
    (root / "pod/c0/cgroup.procs").unlink()
    (root / "pod/c0").rmdir()
    assert not has_process(root / "pod", 1)


@pytest.mark.parametrize("version", [1, 2])
def test_a_cgroup_that_is_gone_has_none(tmp_path: Path, version: Any) -> None:
    assert not has_process(tmp_path / "pod", version)
    (tmp_path / "pod").mkdir()
    assert not has_process(tmp_path / "pod", version)


def test_the_collector_asks_by_the_id_of_the_cgroup(tmp_path: Path) -> None:
    node = Node(tmp_path)
    try:
        node.tick(NS_PER_S)
        ids = node.watch.index.pod_cgroups()
        hog, calm = (ids[UIDS[name]] for name in ("hog", "calm"))
        for name, populated in (("hog", 1), ("calm", 0)):
            (node.pods[name] / "cgroup.events").write_text(f"populated {populated}\n")
        assert node.collector.populated([hog, calm, hog + calm]) == {hog}
    finally:
        node.close()
