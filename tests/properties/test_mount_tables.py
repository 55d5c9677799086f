"""No line of a table of mounts but those that are looked for changes what a reader finds in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from koordebpf.kernel.cgroup.hierarchy import find_controllers, find_memory_hierarchy, find_perf_event_mount
from koordebpf.kernel.host.block_devices import whole_disks
from koordebpf.kernel.host.disk_use import overlays
from koordebpf.kernel.proc.mounts import filesystem_of, read_mounts
from koordebpf.strategies.resctrl.run import ResctrlCollector
from tests.support.values.sub_paths import SUB_PATHS

READ = (b"cgroup", b"cgroup2", b"overlay", b"resctrl")

# What a tenant chooses of a mount: the directory that is mounted, and where, as the kernel escapes them.
names = st.binary(max_size=20).map(
    lambda name: b"/" + b"".join(b"\\%03o" % byte if byte in b"\t\n \\#\0" else bytes([byte]) for byte in name)
)
tenants = st.builds(lambda root, at: b"303 282 999:9 %s /mnt%s rw - fuse fuse rw" % (root, at), names, names)
# Of the file system itself, which escapes nothing, may come what is behind its type.
foreign = st.binary(max_size=40).map(lambda options: b"304 282 999:9 / /mnt/x rw - 9p drvfs " + options)
anything = st.binary(max_size=80)
lines = (
    st.one_of(tenants, foreign, anything)
    .map(lambda line: line.replace(b"\n", b""))
    .filter(lambda line: not any(each in line for each in READ))
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("node")
    for each in ("unified", "proc/self", "sys/class/block"):
        (root / each).mkdir(parents=True)
    (root / "unified/cgroup.controllers").write_text("cpu io memory\n")
    (root / "cgroups").write_text("#subsys_name\thierarchy\tnum_cgroups\tenabled\nmemory\t0\t80\t1\n")
    (root / "proc/cpuinfo").write_text("vendor_id\t: GenuineIntel\n")
    return root


def table(node: Path) -> list[bytes]:
    device = node.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}".encode()
    return [
        b"22 1 %s / / rw shared:1 - ext4 /dev/vda rw" % number,
        b"31 22 0:31 / %s/unified rw - cgroup2 cgroup2 rw,nsdelegate" % os.fsencode(node),
        b"33 22 0:33 / /sys/fs/cgroup/perf_event rw - cgroup cgroup rw,perf_event",
        b"40 22 0:40 / /run/abc/rootfs rw - overlay overlay rw,upperdir=/var/3/fs",
        b"60 22 0:60 / /sys/fs/resctrl rw - resctrl resctrl rw,mba_MBps",
    ]


def found(node: Path, written: list[bytes]) -> list[object]:
    mountinfo = node / "proc/self/mountinfo"
    mountinfo.write_bytes(b"".join(line + b"\n" for line in written))
    resctrl = ResctrlCollector(node, None, node / "proc")  # type: ignore[arg-type]
    return [
        find_memory_hierarchy(mountinfo, node / "cgroups"),
        find_controllers(mountinfo),
        find_perf_event_mount(mountinfo),
        overlays(mountinfo),
        whole_disks(node / "sys", (mountinfo,)),
        filesystem_of(node, mountinfo),
        resctrl._unit(),
    ]


@given(extra=lines, at=st.integers(0, 5))
@example(b"2260 190 0:311 / /Docker/host rw - 9p drvfs rw,path=C:\\Some Files\\Docker;symlinkroot=/mnt/", 0)
@example(b"70 25 0:77 / /home/data rw - fuse.mergerfs \xb1disk:\xbddisk rw", 0)
@example(b"73 25 0:80 / /mnt/e rw - tmpfs  rw", 0)
@example(b"no mount", 0)
@example(b"", 0)
def test_an_extra_line_changes_nothing(node: Path, extra: bytes, at: int) -> None:
    rows = table(node)
    assert found(node, [*rows[:at], extra, *rows[at:]]) == found(node, rows)


@pytest.mark.parametrize("name", SUB_PATHS)
def test_a_sub_path_of_a_tenant_is_one_mount(node: Path, name: bytes) -> None:
    rows = table(node)
    of_tenant = b"303 22 254:0 /pods/uid/data/" + name + b" /pods/uid/sub/0 rw - xfs /dev/vdb rw"
    assert found(node, [of_tenant, *rows])[:4] == found(node, rows)[:4]
    (node / "proc/self/mountinfo").write_bytes(of_tenant + b"\n")
    (mount,) = read_mounts(node / "proc/self/mountinfo")
    assert os.fsencode(mount.root) == b"/pods/uid/data/" + name.replace(rb"\040", b" ")


@given(line=st.binary(max_size=120))
def test_any_bytes_are_mounts_or_passed_over(node: Path, line: bytes) -> None:
    (node / "proc/self/mountinfo").write_bytes(b"1 2 0:3 / /x rw - " + line)
    for each in read_mounts(node / "proc/self/mountinfo"):
        assert "\0" not in each.mount_point
    (node / "proc/self/mountinfo").write_bytes(line)
    read_mounts(node / "proc/self/mountinfo")
