"""What `--cgroup-root` may be: what a kubelet takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordebpf.collect.scope import open_scope
from koordebpf.errors import ConfigError
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy


@pytest.fixture
def hierarchy(tmp_path: Path) -> MemoryHierarchy:
    return MemoryHierarchy(2, tmp_path, 0)


@pytest.mark.parametrize(("given", "root"), [("/", "/"), ("/custom", "/custom"), ("//a/b-c/", "/a/b-c"), (None, None)])
def test_it_is_taken_as_a_kubelet_takes_it(hierarchy: MemoryHierarchy, given: str | None, root: str | None) -> None:
    assert open_scope(hierarchy, None, given).cgroup_root == root


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ("", "must be a path as the kubelet's own"),
        ("custom", "must be a path as the kubelet's own"),
        ("/a/../b", "must be a path as the kubelet's own"),
        ("/kubepods", "must be what kubepods is below"),
        ("/x.slice/x-kubepods.slice", "must be what kubepods is below"),
        ("/user.slice/user-1000.slice", "must not be below user.slice"),
    ],
)
def test_what_it_cannot_be_is_said(hierarchy: MemoryHierarchy, given: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=f"^--cgroup-root: .*{rule}"):
        open_scope(hierarchy, None, given)


def test_a_directory_of_the_mount_is_none(hierarchy: MemoryHierarchy) -> None:
    with pytest.raises(ConfigError, match=f"without {hierarchy.mount_point}: / or /custom"):
        open_scope(hierarchy, None, f"{hierarchy.mount_point}/custom")
