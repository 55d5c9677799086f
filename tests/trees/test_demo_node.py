"""A demo's node as it lies below a memory hierarchy: its levels, its pods, and their manifest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from koordebpf.demo.node import CgroupVersion, NodeCgroup, _remove_leftovers
from koordebpf.errors import SupportError
from koordebpf.kernel.cgroup.hierarchy import cgroup_id

LIMIT = 1 << 30
FILES = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}


def made(root: Path, version: CgroupVersion = 2) -> NodeCgroup:
    return NodeCgroup(root, version, LIMIT, "node")


@pytest.mark.parametrize("version", [1, 2])
def test_it_is_limited_and_has_kubelets_levels_with_the_memory_controller(
    tmp_path: Path, version: CgroupVersion
) -> None:
    node = made(tmp_path, version)
    limit, usage = FILES[version]
    assert (node.path / limit).read_text() == str(LIMIT)
    levels = [node.path / each for each in ("kubepods", "kubepods/burstable", "kubepods/besteffort")]
    assert all(each.is_dir() for each in levels)
    enabled = [each for each in (tmp_path, node.path, *levels) if (each / "cgroup.subtree_control").exists()]
    assert len(enabled) == (5 if version == 2 else 0)
    (node.path / usage).write_text("7\n")
    assert node.usage_bytes() == 7


def test_a_hierarchy_that_lets_it_make_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "node").write_text("")
    with pytest.raises(SupportError, match=f"node cgroup {tmp_path}/node"):
        made(tmp_path, 1)


def test_the_manifest_has_each_pod_as_its_cgroups_are(tmp_path: Path) -> None:
    node = made(tmp_path)
    hog = node.add_pod("hog", containers=2, limit_bytes=7)
    web = node.add_pod("web", be=False, priority=1, labels={"a": "b"})
    assert (node.pod_paths["hog"] / "memory.max").read_text() == "7"
    assert not (node.pod_paths["web"] / "memory.max").exists()
    items = json.loads(node.write_manifest(tmp_path / "pods.json", 80, 75).read_text())["items"]
    assert [each["kind"] for each in items] == ["Pod", "Pod", "NodeSLO"]
    strategy = items[2]["spec"]["resourceUsedThresholdWithBE"]
    assert strategy == {"enable": True, "memoryEvictThresholdPercent": 80, "memoryEvictLowerPercent": 75}
    for pod, level, qos, priority, directories in (
        (items[0], "besteffort", ("BE", "BestEffort"), 5500, hog),
        (items[1], "burstable", (None, "Burstable"), 9500, web),
    ):
        path = node.path / "kubepods" / level / f"pod{pod['metadata']['uid']}"
        assert node.pod_paths[pod["metadata"]["name"]] == path
        statuses = pod["status"]["containerStatuses"]
        ids = [each["containerID"].removeprefix("containerd://") for each in statuses]
        assert directories == [path / each for each in ids] and all(each.is_dir() for each in directories)
        assert all(len(each) == 64 for each in ids)
        assert [each["name"] for each in statuses] == [f"c{number}" for number in range(len(ids))]
        labels = pod["metadata"]["labels"]
        assert (labels.get("koordinator.sh/qosClass"), pod["status"]["qosClass"]) == qos
        assert pod["spec"]["priority"] == priority
    assert not list(tmp_path.glob("*.part"))


def test_each_cgroup_of_a_pod_is_that_pods(tmp_path: Path) -> None:
    node = made(tmp_path)
    (container,) = node.add_pod("hog")
    below = container / "nested"
    below.mkdir()
    expected = {cgroup_id(each): "hog" for each in (node.pod_paths["hog"], container, below)}
    assert node.pods_by_cgroup_id() == expected


def test_oom_kills_are_counted_once(tmp_path: Path) -> None:
    node = made(tmp_path)
    (node.path / "memory.events").write_text("oom 9\noom_kill 3\n")
    assert node.oom_kills() == 3  # with those of its children
    old = NodeCgroup(tmp_path, 1, LIMIT, "old")
    for number, path in enumerate((old.path, *(each for each in old.path.rglob("*") if each.is_dir()))):
        (path / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {number}\n")
    assert old.oom_kills() == 0 + 1 + 2 + 3
    (old.path / "kubepods/memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\n")  # before Linux 4.13
    assert old.oom_kills() is None


def test_a_demo_removes_only_files_of_demos_that_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, files, run = (tmp_path / name for name in ("memory", "tmp", "run"))
    for each in (root, files, run):
        each.mkdir()
    monkeypatch.setattr("koordebpf.demo.node._folders", lambda: (files, run))
    others = {"koordebpf-demo-", "koordebpf-demo-7x", "koordebpf-demo-notes"}
    for name in (*others, "koordebpf-demo-8"):
        (files / name).mkdir()
    (files / "koordebpf-demo-9").symlink_to(tmp_path)
    _remove_leftovers(root, 2)
    assert {path.name for path in files.iterdir()} == {*others, "koordebpf-demo-9"}
