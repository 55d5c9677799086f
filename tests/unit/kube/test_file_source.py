from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from koordebpf.errors import ConfigError
from koordebpf.kube.sources.file import FileSource
from koordebpf.units import NS_PER_S


def pod(name: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": "be", "uid": f"uid-{name}"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta}


def pods(*names: str) -> bytes:
    return json.dumps({"apiVersion": "v1", "kind": "PodList", "items": [pod(name) for name in names]}).encode()


def opened(*paths: Path) -> FileSource:
    source = FileSource(paths)
    assert (source.state().version, source.state().synced_at_ns) == (0, 0)
    source.start(lambda: None)
    return source


def names(source: FileSource) -> list[str]:
    return [p.metadata.name for p in source.state().pods]


def later(source: FileSource, seconds: int = 1) -> int:
    now_ns = source.state().synced_at_ns + seconds * NS_PER_S
    source.refresh(now_ns)
    return now_ns


def swap(path: Path, content: bytes) -> None:
    fresh = path.with_name(".fresh")
    fresh.write_bytes(content)
    fresh.rename(path)


def test_start_reads(tmp_path: Path) -> None:
    path = tmp_path / "pods.json"
    path.write_bytes(pods("a", "b"))
    source = opened(path)
    assert names(source) == ["a", "b"]
    assert source.state().version == 1
    assert source.state().synced_at_ns > 0
    assert source.state().problems == ()
    source.close()


def test_unchanged_file_is_synced_and_not_news(tmp_path: Path) -> None:
    path = tmp_path / "pods.json"
    path.write_bytes(pods("a"))
    source = opened(path)
    first = source.state()
    for _ in range(3):
        now_ns = later(source)
        assert source.state().synced_at_ns == now_ns
    assert source.state().version == first.version
    assert source.state().pods is first.pods


def test_changed_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "pods.json"
    path.write_bytes(pods("a"))
    source = opened(path)
    swap(path, pods("a", "b"))
    now_ns = later(source)
    assert names(source) == ["a", "b"]
    assert source.state().version == 2
    assert source.state().synced_at_ns == now_ns


def test_touched_file_is_no_news(tmp_path: Path) -> None:
    path = tmp_path / "pods.json"
    path.write_bytes(pods("a"))
    source = opened(path)
    os.utime(path, ns=(1, 1))
    later(source)
    assert source.state().version == 1


def test_second_write_within_one_file_time_is_found(tmp_path: Path) -> None:
    path = tmp_path / "pods.json"
    path.write_bytes(pods("a"))
    seen = path.stat()
    source = opened(path)
    # Same inode, size and time: only the second reading can tell.
    path.write_bytes(pods("b"))
    os.utime(path, ns=(seen.st_mtime_ns, seen.st_mtime_ns))
    later(source)
    assert names(source) == ["b"]


def test_half_written_file_keeps_the_last_good_state_as_a_whole(tmp_path: Path) -> None:
    path, other = tmp_path / "pods.json", tmp_path / "more.json"
    path.write_bytes(pods("a"))
    other.write_bytes(pods("x"))
    source = opened(path, other)
    good = source.state()
    # One good change and one half: neither is taken.
    swap(other, pods("y"))
    swap(path, pods("a", "b")[:-20])
    later(source)
    assert source.state().pods == good.pods
    (problem,) = source.state().problems
    assert str(path) in problem
    assert "must be whole JSON" in problem
    assert "the last good content stays in force" in problem
    assert source.state().version == good.version + 1
    # Nothing is known of what is newer: the state ages, and says so once.
    assert source.state().synced_at_ns == good.synced_at_ns
    for seconds in (2, 3):
        later(source, seconds)
    assert source.state().version == good.version + 1
    assert source.state().synced_at_ns == good.synced_at_ns

    swap(path, pods("a", "b"))
    now_ns = later(source, 4)
    assert names(source) == ["a", "b", "y"]
    assert source.state().problems == ()
    assert source.state().synced_at_ns == now_ns


def test_repaired_to_the_same_content_ends_the_problem(tmp_path: Path) -> None:
    path = tmp_path / "pods.json"
    path.write_bytes(pods("a"))
    source = opened(path)
    swap(path, b"{")
    later(source)
    assert source.state().problems
    swap(path, pods("a"))
    now_ns = later(source, 2)
    assert source.state().problems == ()
    assert source.state().version == 3
    assert source.state().synced_at_ns == now_ns


def test_pod_without_uid_is_left_out_and_named(tmp_path: Path) -> None:
    path = tmp_path / "pods.json"
    path.write_bytes(pods("a", "b").replace(b'"uid-b"', b'""'))
    source = opened(path)
    assert names(source) == ["a"]
    (problem,) = source.state().problems
    assert f"{path}.items[1].metadata.uid" in problem
    assert problem.endswith("this object is left out")
    swap(path, pods("a", "b", "c").replace(b'"uid-b"', b'""'))
    now_ns = later(source)
    assert names(source) == ["a", "c"]
    assert source.state().synced_at_ns == now_ns  # all is read, and one object says nothing


def bad(name: str) -> bytes:
    return json.dumps(pod(name) | {"spec": {"priority": "high"}}).encode()


def test_pod_that_cannot_be_read_any_more_stays_as_it_was(tmp_path: Path) -> None:
    path, other = tmp_path / "a.json", tmp_path / "b.json"
    path.write_bytes(pods("a"))
    other.write_bytes(pods("b"))
    source = opened(path, other)
    (first, _) = source.state().pods
    swap(path, bad("a"))
    swap(other, pods("b", "c"))
    later(source)
    assert names(source) == ["b", "c", "a"]
    assert first in source.state().pods
    (problem,) = source.state().problems
    assert "$.spec.priority" in problem
    assert problem.endswith("this object stays as it was")
    version = source.state().version
    for seconds in (2, 3):
        later(source, seconds)
    assert source.state().version == version
    # A good object of the same name, or with its UID, is it.
    swap(other, pods("b", "a"))
    later(source, 4)
    assert names(source) == ["b", "a"]
    swap(other, pods("b").replace(b"uid-b", b"uid-a"))
    later(source, 5)
    assert names(source) == ["b"]
    swap(path, pods("c"))
    later(source, 6)
    assert names(source) == ["c", "b"]
    assert source.state().problems == ()


def test_node_and_configmap_that_cannot_be_read_any_more_stay_as_they_were(tmp_path: Path) -> None:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "slo-controller-config"}, "data": {"k": ""}}
    path, other = tmp_path / "n.json", tmp_path / "c.json"
    path.write_text(json.dumps(node))
    other.write_text(json.dumps(config))
    source = opened(path, other)
    good = source.state()
    swap(path, json.dumps(node | {"status": 3}).encode())
    swap(other, json.dumps(config | {"data": {"k": 1}}).encode())
    later(source)
    assert (source.state().node, source.state().slo_controller_config) == (good.node, {"k": ""})
    assert [each.split(":")[0] for each in source.state().problems] == [str(path), str(other)]


def test_vanished_file_keeps_the_last_good_state(tmp_path: Path) -> None:
    path = tmp_path / "pods.json"
    path.write_bytes(pods("a"))
    source = opened(path)
    away = path.with_suffix(".away")
    path.rename(away)
    at_ns = source.state().synced_at_ns
    later(source)
    assert names(source) == ["a"]
    assert source.state().synced_at_ns == at_ns
    assert source.state().problems == (f"{path}: No such file or directory; the last good content stays in force",)
    away.rename(path)  # the very same file is back
    now_ns = later(source, 2)
    assert source.state().problems == ()
    assert source.state().synced_at_ns == now_ns


def test_directory_means_all_its_manifests(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_bytes(pods("b"))
    (tmp_path / "a.yaml").write_bytes(pods("a"))
    (tmp_path / "c.yml").write_bytes(pods("c"))
    (tmp_path / "README.md").write_text("not a manifest")
    (tmp_path / ".hidden.yaml").write_text("}{")
    source = opened(tmp_path)
    assert names(source) == ["a", "b", "c"]
    (tmp_path / "d.json").write_bytes(pods("d"))
    (tmp_path / "a.yaml").unlink()
    later(source)
    assert names(source) == ["b", "c", "d"]


def test_configmap_volume_is_followed_through_its_symlink(tmp_path: Path) -> None:
    for version in ("v1", "v2"):
        (tmp_path / f"..{version}").mkdir()
        (tmp_path / f"..{version}" / "pods.json").write_bytes(pods(version))
    (tmp_path / "..data").symlink_to("..v1")
    (tmp_path / "pods.json").symlink_to("..data/pods.json")
    source = opened(tmp_path)
    assert names(source) == ["v1"]
    (tmp_path / "..new").symlink_to("..v2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    later(source)
    assert names(source) == ["v2"]


def test_emptied_directory_keeps_the_last_good_state(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(pods("a"))
    source = opened(tmp_path)
    path.unlink()
    later(source)
    assert names(source) == ["a"]
    assert "no file" in source.state().problems[0]


@pytest.mark.parametrize("content", [b"{", b"kind: Pod\nmetadata: {", b'{"kind": "Deployment"}'])
def test_bad_file_at_the_start_is_fatal(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=str(path)):
        opened(path)


def test_missing_file_at_the_start_is_fatal(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory"):
        opened(tmp_path / "none.yaml")


def test_empty_directory_at_the_start_is_fatal(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no file"):
        opened(tmp_path)


def test_no_path_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs at least one"):
        opened()


def test_kubernetes_package_is_not_imported(tmp_path: Path) -> None:
    path = tmp_path / "pods.json"
    path.write_bytes(pods("a"))
    code = (
        "import sys, pathlib\n"
        "from koordebpf.kube.sources.file import FileSource\n"
        f"source = FileSource([pathlib.Path({str(path)!r})])\n"
        "source.start(lambda: None)\n"
        "source.refresh(1)\n"
        "assert len(source.state().pods) == 1\n"
        "print(sorted({'kubernetes', 'urllib3', 'aiohttp', 'ssl'} & set(sys.modules)))\n"
    )
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert shown.stdout.strip() == "[]"


def test_kubelet_source_needs_no_kubernetes_package() -> None:
    code = "import sys, koordebpf.kube.sources.kubelet, koordebpf.kube.sources.api; print('kubernetes' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert shown.stdout.strip() == "False"
