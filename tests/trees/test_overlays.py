"""The table of mounts, paths below another root, and whose overlay is whose."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from koordebpf.kernel.host.disk_use import NodeFiles, Overlay, node_files, open_below, overlays
from koordebpf.strategies.katalyst.rootfs import LayerTable, RootfsCollector
from koordebpf.strategies.katalyst.values import ImageFs

HOST = """22 1 254:0 / / rw - ext4 /dev/root rw
40 22 0:40 / /run/containerd/io.containerd.runtime.v2.task/k8s.io/abc/rootfs rw shared:9 - overlay overlay \
rw,lowerdir=/l/2/fs:/l/1/fs,upperdir=/var/lib/containerd/s/3/fs,workdir=/var/lib/containerd/s/3/work,uuid=on
41 22 0:41 / /var/lib/containers/storage/77/merged rw - overlay overlay rw,upperdir=/var/lib/c\\054s\\040/77/diff
42 22 0:42 / /ro rw - overlay overlay ro,lowerdir=/l/2:/l/1
43 22 0:43 / /rel rw - overlay overlay rw,lowerdir=l/2,upperdir=77/diff
44 22 0:44 / /odd\\012name/rootfs rw - overlay none rw,upperdir=/u
45 22 0:45 / /short -
nonsense
"""
UPPER_OF_41 = "/var/lib/c,s /77/diff"
UPPER = Path("/var/lib/containerd/s/3/fs")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_bytes(HOST.encode() + b"46 22 0:46 / /\xff\x85 rw - overlay none rw,upperdir=/\xff\n")
    return path


def test_overlays_have_their_writable_layer(table: Path) -> None:
    found = {each.device: each for each in overlays(table)}
    assert found["0:40"].upper == UPPER
    assert found["0:41"].upper == Path("/var/lib/c,s /77/diff")
    assert found["0:42"].upper is None
    assert found["0:43"].upper is None
    assert found["0:44"] == Overlay("0:44", Path("/odd\nname/rootfs"), Path("/u"))
    assert os.fsencode(found["0:46"].mount_point) == b"/\xff\x85"
    assert set(found) == {f"0:{number}" for number in (40, 41, 42, 43, 44, 46)}


def test_a_table_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        overlays(tmp_path / "nothing")


class TestContainer:
    def test_containerd_names_it_in_the_mount_point(self, table: Path) -> None:
        assert LayerTable(overlays(table)).upper_of("abc", ()) == UPPER

    def test_else_it_is_the_root_of_one_of_its_processes(
        self, table: Path, tree: Callable[[dict[str, object]], Path]
    ) -> None:
        root = "0:41 / / rw - overlay overlay rw,upperdir=/whatever/it/says"
        made = tree({"cg": {"cgroup.procs": "0\n7\n8\n"}, "proc": {"8": {"mountinfo": f"9 1 {root}\n"}}})
        layers = LayerTable(overlays(table), made / "proc")
        assert layers.upper_of("xyz", [str(made / "gone"), str(made / "cg")]) == Path("/var/lib/c,s /77/diff")

    def test_an_overlay_that_the_node_does_not_have_is_not_believed(
        self, table: Path, tree: Callable[[dict[str, object]], Path]
    ) -> None:
        own = f"9 1 0:99 / / rw - overlay overlay rw,upperdir={UPPER}\n"
        made = tree({"cg": {"cgroup.procs": "8\n"}, "proc": {"8": {"mountinfo": own}}})
        assert LayerTable(overlays(table), made / "proc").upper_of("xyz", [str(made / "cg")]) is None

    def test_of_a_container_with_many_mounts_the_first_are_read(
        self, table: Path, tree: Callable[[dict[str, object]], Path]
    ) -> None:
        many = "9 1 0:41 / / rw - overlay overlay rw\n" + "9 1 0:40 / / rw - overlay overlay rw,upperdir=/x\n" * 50_000
        made = tree({"cg": {"cgroup.procs": "8\n" * 1000}, "proc": {"8": {"mountinfo": many}}})
        began = time.thread_time()
        assert LayerTable(overlays(table), made / "proc").upper_of("xyz", [str(made / "cg")]) == Path(UPPER_OF_41)
        assert time.thread_time() - began < 2  # all of them take minutes

    def test_one_of_another_name_is_not_meant(self, table: Path) -> None:
        assert LayerTable(overlays(table)).upper_of("ab", ()) is None


class TestOpenBelow:
    def test_links_stay_below_the_root(self, tree: Callable[[dict[str, object]], Path]) -> None:
        root = tree({"data/docker": {"file": "x"}, "var/lib": {}, "outside": {}})
        (root / "var/lib/docker").symlink_to("/data")
        fd = open_below(root, Path("/var/lib/docker/docker"))
        try:
            assert [each.name for each in os.scandir(fd)] == ["file"]
        finally:
            os.close(fd)
        (root / "var/lib/up").symlink_to("../../../../../..")
        fd = open_below(root, Path("/var/lib/up/data"))
        try:
            assert [each.name for each in os.scandir(fd)] == ["docker"]
        finally:
            os.close(fd)

    def test_what_is_no_directory_is_not_opened(self, tree: Callable[[dict[str, object]], Path]) -> None:
        root = tree({"data": {"file": "x"}})
        os.mkfifo(root / "fifo")
        for name in ("data/file", "fifo"):
            with pytest.raises(NotADirectoryError, match=name):
                open_below(root, Path("/") / name)

    def test_what_is_not_there_is_an_error_with_its_path(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError, match="/no/such"):
            open_below(tmp_path, Path("/no/such"))

    def test_the_machines_root_is_one_too(self) -> None:
        fd = open_below(Path("/"), Path("/usr"))
        try:
            assert os.path.samestat(os.fstat(fd), Path("/usr").stat())
        finally:
            os.close(fd)


class TestNodeFiles:
    def test_a_process_with_mounts_of_its_own_looks_at_those_of_pid_1(
        self, tree: Callable[[dict[str, object]], Path]
    ) -> None:
        proc = tree({"1/ns": {}, "self/ns": {}, "1/root/proc": {}})
        (proc / "1/ns/mnt").symlink_to("mnt:[1]")
        (proc / "self/ns/mnt").symlink_to("mnt:[1]")
        assert node_files(proc).root == Path("/")
        (proc / "self/ns/mnt").unlink()
        (proc / "self/ns/mnt").symlink_to("mnt:[2]")
        assert node_files(proc).root == proc / "1/root"
        assert node_files(proc).mountinfo == proc / "1/mountinfo"

    def test_where_it_may_not_look_it_takes_its_own(self, tree: Callable[[dict[str, object]], Path]) -> None:
        assert node_files(tree({"self/ns": {}})).root == Path("/")


class TestImageFilesystem:
    """Which directory the collector takes where none is set."""

    def found(self, root: Path, mounts: str = "") -> str | None:
        (root / "mountinfo").write_text(mounts)
        is_asked = threading.Event()

        def is_short(_: ImageFs) -> bool:
            is_asked.set()
            return False

        with RootfsCollector(dict, None, is_short, node=NodeFiles(root / "mountinfo", root)) as made:
            is_asked.wait(0.5)
            image_fs = made.measure()[0]
        return image_fs and image_fs.path

    def test_the_runtime_that_has_layers_is_taken(self, tree: Callable[[dict[str, object]], Path]) -> None:
        root = tree({"var/lib": {"containerd": {}, "docker": {}, "kubelet": {}}})
        line = "40 22 0:40 / /m rw - overlay overlay rw,upperdir=/var/lib/docker/overlay2/1/diff\n"
        assert self.found(root, line) == "/var/lib/docker"

    def test_else_the_first_that_is_there(self, tree: Callable[[dict[str, object]], Path]) -> None:
        assert self.found(tree({"var/lib": {"kubelet": {}, "docker": {}}})) == "/var/lib/docker"

    def test_its_directory_may_be_a_link(self, tree: Callable[[dict[str, object]], Path]) -> None:
        root = tree({"data": {}, "var/lib": {}})
        (root / "var/lib/containerd").symlink_to("/data")
        assert self.found(root) == "/var/lib/containerd"

    def test_without_any_it_is_not_known(self, tree: Callable[[dict[str, object]], Path]) -> None:
        assert self.found(tree({"var/lib/other": {}})) is None
