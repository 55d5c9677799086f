"""What memory QoS wants, written to a tree of cgroup v2 with the files of an Anolis kernel, and restored."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.act.writer.change import WriteResult
from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.places import Places
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.policy.reconcile import CgroupWrite, DesiredState
from tests.support.values.memory_qos import GIB, MIB

OWNER = "memoryQos"
FILES = {
    CgroupFile.MEMORY_MIN: ("0\n", 10 * MIB),
    CgroupFile.MEMORY_LOW: ("4096\n", 20 * MIB),
    CgroupFile.MEMORY_HIGH: ("max\n", 30 * MIB),
    CgroupFile.MEMORY_OOM_GROUP: ("0\n", 1),
    CgroupFile.MEMORY_WMARK_RATIO: ("0\n", 95),
    CgroupFile.MEMORY_WMARK_SCALE: ("50\n", 20),
    CgroupFile.MEMORY_WMARK_MIN_ADJ: ("0\n", -25),
    CgroupFile.MEMORY_PRIORITY: ("0\n", 10),
    CgroupFile.MEMORY_USE_PRIORITY_OOM: ("0\n", 1),
    CgroupFile.MEMORY_PAGECACHE_ENABLE: ("0\n", 1),
    CgroupFile.MEMORY_PAGECACHE_SIZE: ("0\n", 40 * MIB),
    CgroupFile.MEMORY_PAGECACHE_SYNC: ("0\n", 1),
}
PATHS = ("kubepods", "kubepods/burstable", "kubepods/burstable/pod1")


class Tree:
    def __init__(self, root: Path, journal: Journal) -> None:
        self.root = root
        self.journal = journal
        for path in PATHS:
            self.make(path)
        self.writer = self.other_writer()

    def make(self, path: str) -> None:
        (self.root / path).mkdir(parents=True, exist_ok=True)
        for file, (text, _) in FILES.items():
            # As long as any value: a file of a disk keeps what is behind the last byte written.
            (self.root / path / file.value).write_text(text.strip().ljust(12) + "\n")

    def other_writer(self) -> CgroupWriter:
        mount = ControllerMount(2, self.root)
        return CgroupWriter(Places({"memory": mount}), self.journal, enforce=True)

    def texts(self) -> dict[str, str]:
        return {str(each.relative_to(self.root)): each.read_text() for each in sorted(self.root.rglob("memory.*"))}


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with Journal(tmp_path / "journal") as journal:
        yield Tree(tmp_path / "cgroup", journal)


ALL = tuple(CgroupWrite(path, file, value) for path in PATHS for file, (_, value) in FILES.items())


def test_each_file_holds_what_is_wanted_and_then_what_it_held(tree: Tree) -> None:
    before = tree.texts()
    changes = tree.writer.apply(DesiredState("a test", ALL), 0, OWNER).changes
    assert {each.result for each in changes} == {WriteResult.WRITTEN}
    held = tree.texts()
    for path in PATHS:
        for file, (_, value) in FILES.items():
            assert int(held[f"{path}/{file.value}"].split()[0]) == value, (path, file)
    assert tree.writer.restore(1, owner=OWNER).left == ()
    assert tree.texts() == before


def test_a_parent_grows_before_its_children_and_shrinks_after_them(tree: Tree) -> None:
    def order(value: int) -> list[str]:
        writes = tuple(CgroupWrite(path, CgroupFile.MEMORY_MIN, value) for path in PATHS)
        changes = tree.writer.apply(DesiredState("a test", writes), 0, OWNER).changes
        return [str(Path(each.path).parent.relative_to(tree.root)) for each in changes]

    assert order(2 * GIB) == list(PATHS)
    assert order(1 * GIB) == list(reversed(PATHS))


@pytest.mark.parametrize("file", FILES)
def test_a_killed_agent_leaves_what_the_next_one_restores(tree: Tree, file: CgroupFile) -> None:
    text, value = FILES[file]
    tree.writer.apply(DesiredState("a test", (CgroupWrite(PATHS[-1], file, value),)), 0, OWNER)
    path = tree.root / PATHS[-1] / file.value
    assert int(path.read_text().split()[0]) == value
    assert tree.other_writer().restore(1).left == ()
    assert path.read_text().strip() == text.strip()


def test_of_two_that_throttle_the_lower_one_counts(tree: Tree) -> None:
    high, path = CgroupFile.MEMORY_HIGH, tree.root / PATHS[-1] / "memory.high"
    tree.writer.apply(DesiredState("a test", (CgroupWrite(PATHS[-1], high, 30 * MIB),)), 0, OWNER)
    tree.writer.apply(DesiredState("a brake", (CgroupWrite(PATHS[-1], high, 20 * MIB),)), 1, "ladder")
    assert int(path.read_text()) == 20 * MIB
    tree.writer.restore(2, owner="ladder")
    tree.writer.apply(DesiredState("a test", (CgroupWrite(PATHS[-1], high, 30 * MIB),)), 3, OWNER)
    assert int(path.read_text()) == 30 * MIB


def test_the_writer_does_not_wait_until_memory_is_below_memory_high(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: dict[str, int] = {}
    real = os.open

    def noting(path: Path, flags: int, *given: int) -> int:
        if flags & os.O_RDWR:
            opened[Path(path).name] = flags & os.O_NONBLOCK
        return real(path, flags, *given)

    monkeypatch.setattr(os, "open", noting)
    tree.writer.apply(DesiredState("a test", ALL), 0, OWNER)
    assert opened.keys() == {each.value for each in FILES}
    assert [name for name, is_nonblocking in opened.items() if is_nonblocking] == ["memory.high"]


def test_a_cgroup_that_is_gone_and_a_file_that_is_not_there_fail_alone(tree: Tree) -> None:
    (tree.root / PATHS[1] / "memory.priority").unlink()
    gone = CgroupWrite("kubepods/burstable/pod2", CgroupFile.MEMORY_MIN, MIB)
    changes = tree.writer.apply(DesiredState("a test", (*ALL, gone)), 0, OWNER).changes
    failed = {(Path(each.path).name, each.result) for each in changes if each.result is not WriteResult.WRITTEN}
    assert failed == {("memory.priority", WriteResult.UNSUPPORTED), ("memory.min", WriteResult.GONE)}
    assert sum(each.result is WriteResult.WRITTEN for each in changes) == len(ALL) - 1


@pytest.mark.parametrize("refused_file", FILES)
@pytest.mark.parametrize("number", [errno.EACCES, errno.EINVAL, errno.EBUSY, errno.EROFS, errno.ENODEV])
def test_what_the_kernel_refuses_is_reported_and_nothing_else_fails(
    tree: Tree, refused_file: CgroupFile, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from koordebpf.act.writer import places

    real = places.write_kernel_file

    def refusing(path: Path, *given: object) -> str:
        if path.name == refused_file.value:
            raise OSError(number, "refused")
        return real(path, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(places, "write_kernel_file", refusing)
    changes = tree.writer.apply(DesiredState("a test", ALL), 0, OWNER).changes
    refused = [each for each in changes if each.result is not WriteResult.WRITTEN]
    assert {Path(each.path).name for each in refused} == {refused_file.value}
    assert {each.detail for each in refused} == {errno.errorcode[number]}
    # It is not tried again each round.
    assert tree.writer.apply(DesiredState("a test", ALL), 1, OWNER).changes == ()
