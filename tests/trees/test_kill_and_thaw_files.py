"""Files that kill and thaw cgroups: which ones are written, and which are left alone."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from koordebpf.kernel.cgroup.freezer import is_frozen, thaw, thaw_at, thaw_subtree
from koordebpf.kernel.cgroup.kill import killed_beside_monitors

MakeTree = Callable[[dict[str, Any]], Path]
MONITOR = "crio-conmon-c1.scope"
STATE: dict[int, tuple[str, str]] = {1: ("freezer.state", "THAWED"), 2: ("cgroup.freeze", "0")}


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


class TestMonitors:
    @staticmethod
    def killed(root: Path, most: int = 10) -> tuple[bool, list[str]]:
        """Return what it says, and the directories that were killed."""
        with opened(root / "pod") as fd:
            is_done = killed_beside_monitors(fd, most)
        return is_done, sorted(path.parent.name for path in root.rglob("cgroup.kill") if path.read_text() == "1")

    @staticmethod
    def pod(*containers: str, procs: str = "") -> dict[str, Any]:
        return {"pod": {"cgroup.procs": procs, "cgroup.kill": "", **{name: {"cgroup.kill": ""} for name in containers}}}

    @pytest.mark.parametrize("monitor", [MONITOR, "libpod-conmon-c1.scope"])
    def test_all_but_monitors_are_killed(self, tree: MakeTree, monitor: str) -> None:
        assert self.killed(tree(self.pod("c1", "c2", monitor))) == (True, ["c1", "c2"])

    @pytest.mark.parametrize("names", [("c1", "c2"), ("c1", f"x-{MONITOR}"), ()])
    def test_without_a_monitor_the_pod_is_to_be_killed_whole(self, tree: MakeTree, names: tuple[str, ...]) -> None:
        assert self.killed(tree(self.pod(*names))) == (False, [])

    def test_a_pod_with_a_process_of_its_own_is_as_no_runtime_makes_it(self, tree: MakeTree) -> None:
        assert self.killed(tree(self.pod("c1", MONITOR, procs="7\n"))) == (False, [])

    @pytest.mark.parametrize(("most", "is_done"), [(3, True), (2, False)])
    def test_so_many_cgroups_are_killed_one_by_one(self, tree: MakeTree, most: int, is_done: bool) -> None:
        assert self.killed(tree(self.pod("c1", "c2", MONITOR)), most) == (is_done, ["c1", "c2"] if is_done else [])

    def test_one_that_cannot_be_killed_leaves_the_others_killed(self, tree: MakeTree) -> None:
        root = tree(self.pod("c1", "c2", MONITOR))
        (root / "pod/c1/cgroup.kill").unlink()
        (root / "pod/c1/cgroup.kill").mkdir()
        with opened(root / "pod") as fd:
            assert not killed_beside_monitors(fd, 10)
        assert (root / "pod/c2/cgroup.kill").read_text() == "1"

    def test_a_pod_that_is_gone_is_not_killed(self, tree: MakeTree) -> None:
        root = tree({"pod": {MONITOR: {}, "c1": {}}})
        with opened(root / "pod") as fd:
            assert not killed_beside_monitors(fd, 10)


class TestFreezer:
    @pytest.mark.parametrize("version", [1, 2])
    def test_one_is_thawed_and_no_other_one(self, tree: MakeTree, version: Literal[1, 2]) -> None:
        name, thawed = STATE[version]
        root = tree({"pod": {"a": {name: ""}, "b": {name: ""}, name: ""}})
        assert thaw(root / "pod/a", version)
        assert [(root / "pod" / each / name).read_text() for each in ("a", "b", "")] == [thawed, "", ""]
        with opened(root / "pod/b") as fd:
            assert thaw_at(fd, version)
        assert [(root / "pod" / each / name).read_text() for each in ("a", "b", "")] == [thawed, thawed, ""]

    @pytest.mark.parametrize("version", [1, 2])
    def test_one_that_is_gone_is_not_thawed(self, tree: MakeTree, version: Literal[1, 2]) -> None:
        root = tree({"pod": {}})
        assert not thaw(root / "pod", version)
        with opened(root / "pod") as fd:
            assert not thaw_at(fd, version)

    def test_a_subtree_is_thawed_at_every_level(self, tree: MakeTree) -> None:
        root = tree({"pod": {"freezer.state": "", "a": {"freezer.state": "", "b": {"freezer.state": ""}}}})
        with opened(root / "pod") as fd:
            assert thaw_subtree(fd)
        assert [path.read_text() for path in root.rglob("freezer.state")] == ["THAWED"] * 3

    def test_a_level_that_cannot_be_thawed_leaves_a_subtree_frozen(self, tree: MakeTree) -> None:
        root = tree({"pod": {"freezer.state": "", "a": {"b": {"freezer.state": ""}}}})
        with opened(root / "pod") as fd:
            assert not thaw_subtree(fd)
        assert [path.read_text() for path in root.rglob("freezer.state")] == ["THAWED"] * 2

    @pytest.mark.parametrize(("version", "name"), [(1, "freezer.self_freezing"), (2, "cgroup.freeze")])
    @pytest.mark.parametrize(("text", "is_it"), [("1\n", True), ("0\n", False)])
    def test_it_is_frozen_by_its_own_file(
        self, tree: MakeTree, version: Literal[1, 2], name: str, text: str, is_it: bool
    ) -> None:
        root = tree({"pod": {name: text}, "other": {}})
        assert is_frozen(root / "pod", version) is is_it
        assert not is_frozen(root / "other", version)
