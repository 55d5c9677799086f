"""The kubelet's cgroup root that an agent leaves for the next one."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordebpf.attribution.kubelet_root import KubeletRoot
from koordebpf.store.cgroup_root import KeptRoot

NEAR, DEEP = "any.service/kubepods", "system.slice/docker-3f.scope/kubelet/kubepods"
DEEP_ROOT = "/system.slice/docker-3f.scope/kubelet"


def learned(path: Path | None, pods: dict[str, set[str]], given: str | None = None) -> str | None:
    """Return the root that an agent has which finds these pods below these directories."""
    kubelet = KubeletRoot(given)
    kept = KeptRoot(kubelet, path, None)
    kept.refresh()  # not known yet, or given
    ids = {place: number for number, place in enumerate((NEAR, DEEP), 1) if kubelet.is_kubepods(number, place)}
    kubelet.learn({ids[place]: uids for place, uids in pods.items()} if ids else {})
    kept.refresh()
    kept.refresh()
    return kubelet.path


def test_the_next_agent_takes_it_again_whatever_was_made_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "cgroup-root"
    assert learned(path, {DEEP: {"u-1"}}) == DEEP_ROOT
    assert path.read_text() == DEEP_ROOT
    assert learned(path, {NEAR: {"u-1"}, DEEP: {"u-1"}}) == DEEP_ROOT
    assert learned(None, {NEAR: {"u-1"}, DEEP: {"u-1"}}) == "/any.service"


def test_where_no_pod_is_any_more_it_is_learned_again_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cgroup-root"
    learned(path, {DEEP: {"u-1"}})
    assert learned(path, {NEAR: {"u-1"}}) == "/any.service"
    assert path.read_text() == "/any.service"
    (warning,) = (each.getMessage() for each in caplog.records if each.levelname == "WARNING")
    assert warning.startswith(f"it was {DEEP_ROOT} for the agent before")


def test_what_is_given_is_neither_kept_nor_said_to_be_learned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    assert learned(tmp_path / "cgroup-root", {}, given="/custom") == "/custom"
    assert (list(tmp_path.iterdir()), caplog.records) == ([], [])


@pytest.mark.parametrize("content", [b"", b"\xff", b"/" + b"x" * 5_000])
def test_what_cannot_be_a_root_is_none(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "cgroup-root"
    path.write_bytes(content)
    assert learned(path, {NEAR: {"u-1"}, DEEP: {"u-1"}}) == "/any.service"
    assert [each for each in caplog.records if each.levelname == "WARNING"] == []


@pytest.mark.parametrize(("characters", "is_taken"), [(4095, True), (4096, False)])
def test_a_root_may_be_as_long_as_a_path_and_no_longer(tmp_path: Path, characters: int, is_taken: bool) -> None:
    root = "/" + "x" * (characters - 1)
    path, kubelet = tmp_path / "cgroup-root", KubeletRoot(None)
    path.write_text(root)
    KeptRoot(kubelet, path, None)
    assert kubelet.expected == (root if is_taken else None)


def test_a_file_that_cannot_be_written_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert learned(tmp_path / "none" / "cgroup-root", {DEEP: {"u-1"}}) == DEEP_ROOT
    assert "the next agent learns it again" in caplog.text
