"""Where each controller is mounted: pure v1, pure v2 and hybrid."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, find_controllers

V1 = "30 24 0:26 / {top}/{name} rw - cgroup cgroup rw,{options}\n"
V2 = "31 24 0:27 {root} {top}/unified rw - cgroup2 cgroup2 rw\n"


def mountinfo(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text("".join(line.replace("{top}", str(tmp_path)) for line in lines))
    return path


def v2(tmp_path: Path, controllers: str) -> str:
    (tmp_path / "unified").mkdir(exist_ok=True)
    (tmp_path / "unified/cgroup.controllers").write_text(controllers)
    return V2.replace("{root}", "/")


def test_v1_has_a_mount_for_each_and_some_share_one(tmp_path: Path) -> None:
    lines = [V1.replace("{name}", "cpu,cpuacct").replace("{options}", "cpu,cpuacct")]
    lines.append(V1.replace("{name}", "cpuset").replace("{options}", "cpuset"))
    found = find_controllers(mountinfo(tmp_path, *lines))
    assert found["cpu"] == found["cpuacct"] == ControllerMount(1, tmp_path / "cpu,cpuacct")
    assert found["cpuset"] == ControllerMount(1, tmp_path / "cpuset")


def test_v2_has_all_in_one(tmp_path: Path) -> None:
    found = find_controllers(mountinfo(tmp_path, v2(tmp_path, "cpuset cpu memory\n")))
    assert found == dict.fromkeys(("cpuset", "cpu", "memory"), ControllerMount(2, tmp_path / "unified"))


def test_a_hybrid_has_each_where_it_is(tmp_path: Path) -> None:
    line = V1.replace("{name}", "cpu").replace("{options}", "cpu")
    found = find_controllers(mountinfo(tmp_path, line, v2(tmp_path, "memory\n")))
    assert found["cpu"] == ControllerMount(1, tmp_path / "cpu")
    assert found["memory"] == ControllerMount(2, tmp_path / "unified")
    assert "cpuset" not in found


def test_a_containers_own_mount_comes_after_the_hosts(tmp_path: Path) -> None:
    own = f"29 24 0:27 /kubepods/pod1 {tmp_path}/own rw - cgroup2 cgroup2 rw\n"
    (tmp_path / "own").mkdir()
    (tmp_path / "own/cgroup.controllers").write_text("cpu\n")
    found = find_controllers(mountinfo(tmp_path, own, v2(tmp_path, "cpu\n")))
    assert found["cpu"] == ControllerMount(2, tmp_path / "unified")


def test_without_procfs_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SupportError, match="Mount procfs"):
        find_controllers(tmp_path / "none")


def test_mounts_of_other_systems_are_found_where_they_are(tmp_path: Path) -> None:
    # As Android has them: no common folder, and cpuset without the prefix of its files.
    lines = (
        "31 25 0:31 / {top}/memcg rw - cgroup none rw,memory\n",
        "33 25 0:29 / {top}/cpuset rw - cgroup none rw,cpuset,noprefix,release_agent=/sbin/release\n",
        "34 25 0:30 / {top}/cpuctl rw - cgroup none rw,cpu\n",
    )
    found = find_controllers(mountinfo(tmp_path, *lines))
    at = {"memory": "memcg", "cpuset": "cpuset", "cpu": "cpuctl"}
    assert {name: found[name] for name in at} == {
        name: ControllerMount(1, tmp_path / folder) for name, folder in at.items()
    }


def test_mounts_that_ended_containers_left_behind_are_not_the_nodes(tmp_path: Path) -> None:
    left = "60 24 0:{device} /kubepods/podx/c1 {top}/left/rootfs/{name} rw - cgroup cgroup rw,{name}\n"
    own = "3{device} 25 0:{device} / {top}/{name} rw - cgroup cgroup rw,{name}\n"
    names = ("memory", "cpu", "cpuset", "freezer")
    each = [(line, at, name) for line in (left, own) for at, name in enumerate(names)]
    lines = [line.replace("{device}", str(at)).replace("{name}", name) for line, at, name in each]
    found = find_controllers(mountinfo(tmp_path, *lines))
    assert {name: found[name] for name in names} == {name: ControllerMount(1, tmp_path / name) for name in names}
