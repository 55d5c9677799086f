"""Where the memory controller is mounted: a tree for each way distributions do it, and for each way it is broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordebpf.errors import KernelFileError, SupportError
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy, find_memory_hierarchy

HEADER = "#subsys_name\thierarchy\tnum_cgroups\tenabled\n"
V1_ROWS = HEADER + "cpu\t1\t1\t1\nmemory\t4\t10\t1\nfreezer\t6\t1\t1\n"
V2_ROWS = HEADER + "cpu\t0\t70\t1\nmemory\t0\t70\t1\n"
PROC = "23 1 0:21 / /proc rw,nosuid shared:5 - proc proc rw\n"


def v1(mount_point: Path | str, controller: str, root: str = "/") -> str:
    return f"35 31 0:32 {root} {mount_point} rw,relatime shared:9 - cgroup cgroup rw,{controller}\n"


def v2(mount_point: Path | str, root: str = "/") -> str:
    return f"41 31 0:38 {root} {mount_point} rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.fixture
def find(tree, tmp_path):
    def find(mountinfo: str, cgroups: str | None, **controllers: str) -> MemoryHierarchy:
        files = {"mountinfo": PROC + mountinfo}
        if cgroups is not None:
            files["cgroups"] = cgroups
        files |= {f"{mount}/cgroup.controllers": text for mount, text in controllers.items()}
        tree(files)
        return find_memory_hierarchy(tmp_path / "mountinfo", tmp_path / "cgroups")

    return find


def test_pure_v2(find, tmp_path) -> None:
    found = find(v2(tmp_path / "unified"), V2_ROWS, unified="cpu io memory pids\n")
    assert found == MemoryHierarchy(2, tmp_path / "unified", 0, None)


@pytest.mark.parametrize("cgroups", [None, HEADER])
def test_v2_on_a_kernel_without_v1(find, tmp_path, cgroups) -> None:
    assert find(v2(tmp_path / "unified"), cgroups, unified="memory\n").version == 2


def test_hybrid_with_the_controllers_on_v1(find, tmp_path) -> None:
    found = find(
        v2(tmp_path / "unified") + v1("/c/memory", "memory") + v1("/c/freezer", "freezer"), V1_ROWS, unified="\n"
    )
    assert found == MemoryHierarchy(1, Path("/c/memory"), 4, Path("/c/freezer"))


def test_hybrid_with_memory_on_v2(find, tmp_path) -> None:
    found = find(v1("/c/cpu", "cpu") + v2(tmp_path / "unified"), V2_ROWS, unified="memory\n")
    assert (found.version, found.hierarchy_id, found.freezer_mount_point) == (2, 0, None)


def test_v1_without_a_freezer(find) -> None:
    assert find(v1("/c/memory", "memory"), V1_ROWS).freezer_mount_point is None


def test_v1_controllers_mounted_together(find) -> None:
    rows = HEADER + "cpu\t2\t1\t1\nmemory\t2\t1\t1\n"
    assert find(v1("/c", "cpu,memory"), rows) == MemoryHierarchy(1, Path("/c"), 2, None)


def test_a_space_in_the_mount_point(find) -> None:
    assert find(v1(r"/my\040cgroups/memory", "memory"), V1_ROWS).mount_point == Path("/my cgroups/memory")


@pytest.mark.parametrize(
    ("roots", "expected"),
    [
        # A container sees its own cgroup bind-mounted, and the host's hierarchy where the pod mounts it.
        ({"/sys/fs/cgroup/memory": "/kubepods/podx/abc", "/host-cgroup/memory": "/"}, "/host-cgroup/memory"),
        # In a cgroup namespace of its own the host's root is above.
        ({"/sys/fs/cgroup/memory": "/", "/host-cgroup/memory": "/../../.."}, "/host-cgroup/memory"),
        ({"/sys/fs/cgroup/memory": "/../..", "/host-cgroup/memory": "/"}, "/sys/fs/cgroup/memory"),
        ({"/tenant": "/../../kubepods", "/host-cgroup/memory": "/../.."}, "/host-cgroup/memory"),
        # Two dots in a name are no way up.
        ({"/tenant": "/kubepods/a..b", "/sys/fs/cgroup/memory": "/"}, "/sys/fs/cgroup/memory"),
        ({"/tenant": "/..evil", "/sys/fs/cgroup/memory": "/"}, "/sys/fs/cgroup/memory"),
        ({"/tenant": "/a/..b/..c", "/sys/fs/cgroup/memory": "/"}, "/sys/fs/cgroup/memory"),
    ],
)
def test_of_two_mounts_the_one_that_reaches_further(find, roots, expected) -> None:
    mountinfo = "".join(v1(mount, "memory", root) for mount, root in roots.items())
    assert find(mountinfo, V1_ROWS).mount_point == Path(expected)


def test_no_memory_controller_says_what_to_mount(find, tmp_path) -> None:
    with pytest.raises(SupportError, match="mount -t cgroup2"):
        find(v2(tmp_path / "unified"), V2_ROWS, unified="cpu io\n")


def test_a_table_that_is_read_in_part_is_said(find, tmp_path) -> None:
    # GIVEN a table of more than is read, with the mount behind that
    other = f"30 25 0:26 / /m rw - overlay overlay rw,lowerdir={'/layer:' * 10_000}\n"
    table = other * ((1 << 24) // len(other) + 1) + v2(tmp_path / "unified")
    with pytest.raises(
        SupportError, match=r"no cgroup mount in the first 16\.0 MiB of .*mountinfo, which is longer, has"
    ):
        find(table, V2_ROWS, unified="memory\n")


def test_a_disabled_controller_says_how_to_boot(find) -> None:
    with pytest.raises(SupportError, match="cgroup_enable=memory"):
        find("", HEADER + "memory\t0\t1\t0\n")


def test_no_procfs(tmp_path) -> None:
    with pytest.raises(SupportError, match="Mount procfs"):
        find_memory_hierarchy(tmp_path / "none", tmp_path / "none")


@pytest.mark.parametrize("line", ["nonsense\n", "1 2 3 - cgroup\n", "1 2 0:3 / /x rw cgroup cgroup rw,memory\n"])
def test_a_line_that_is_no_mount_is_passed_over(find, line) -> None:
    assert find(line + v1("/c/memory", "memory"), V1_ROWS).mount_point == Path("/c/memory")
    with pytest.raises(SupportError, match="no cgroup mount"):
        find(line, V1_ROWS)


@pytest.mark.parametrize("row", ["memory four 1 1", "memory 4", "memory -4 1 1"])
def test_a_garbage_row_is_named(find, tmp_path, row) -> None:
    with pytest.raises(KernelFileError) as error:
        find(v1("/c/memory", "memory"), HEADER + row + "\n")
    assert (error.value.path, error.value.value) == (str(tmp_path / "cgroups"), row)


def test_v1_without_its_row(find) -> None:
    with pytest.raises(KernelFileError, match="must have a row for memory"):
        find(v1("/c/memory", "memory"), HEADER)
