"""What an agent leaves for its successor: kept, restored where none comes, and forgotten once one continues."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.store.handover import KEPT, can_wait, forget_kept, is_kept, is_succeeded, settle
from koordebpf.store.node_lock import NodeLock, StandBy
from tests.support.patience import patience
from tests.unit.agent.test_sole_agent import machine


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "machine"
    path.mkdir()
    (path / KEPT).write_text("{}")
    return path


@pytest.fixture
def standby(tmp_path: Path, folder: Path) -> Iterator[None]:
    """An agent that acts, and one that stands by."""
    with NodeLock(tmp_path, machine()), contextlib.closing(StandBy(tmp_path, machine(), lambda: None)):
        yield


def test_what_no_agent_continues_from_is_restored_and_forgotten(folder: Path) -> None:
    settle(folder, waits=False)
    assert not is_kept(folder)
    settle(folder, waits=False)


@pytest.mark.usefixtures("standby")
def test_it_stays_for_an_agent_that_stands_by(folder: Path) -> None:
    settle(folder, waits=False)
    assert is_kept(folder)


@pytest.mark.parametrize("in_pod", [True, False])
def test_it_stays_for_a_process_that_waits_but_none_waits_in_a_pod(
    in_pod: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    if in_pod:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert can_wait() is not in_pod
    settle(folder, waits=True)
    assert is_kept(folder) is not in_pod


def test_a_folder_with_nothing_else_is_removed_with_it(folder: Path) -> None:
    (folder / "audit").write_text("")
    forget_kept(folder)
    assert [each.name for each in folder.iterdir()] == ["audit"]
    (folder / "audit").unlink()
    (folder / KEPT).write_text("{}")
    forget_kept(folder)
    assert not folder.exists()
    forget_kept(folder)


class TestSuccessor:
    def test_without_one_the_wait_ends(self, folder: Path) -> None:
        assert not is_succeeded([folder], 0.01)
        assert not is_succeeded([folder], 0)

    def test_one_that_acts_when_the_wait_ends_is_one(self, folder: Path, tmp_path: Path) -> None:
        with NodeLock(tmp_path, machine()):
            assert is_succeeded([folder], 0)

    @pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_text("[]")], ids=["takes", "rewrites"])
    def test_one_that_continues_from_what_was_kept_ends_the_wait(self, change, folder: Path) -> None:
        other = folder.parent / "other"
        timer = threading.Timer(0.05, change, [folder / KEPT])
        timer.start()
        assert is_succeeded([other, folder], patience(60))
        timer.join()
