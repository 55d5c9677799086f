"""What becomes of what suppression wrote when its agent ends: restored, or kept for the one that stands by."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from koordebpf.policy.strategy import KEPT
from koordebpf.store.node_lock import NodeLock, StandBy
from koordebpf.strategies.cpu_suppress.run import Suppression, SuppressionMetrics
from koordebpf.strategies.cpu_suppress.values import SuppressSettings
from tests.unit.agent.test_sole_agent import machine


class Writer:
    """The writer's part: who had something restored."""

    is_journalled = False

    def __init__(self) -> None:
        self.restored: list[str] = []

    def restore(self, _now_ns: int, *, owner: str, wait_s: float) -> Any:
        assert wait_s > 0
        self.restored.append(owner)
        return SimpleNamespace(left=())


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Writer:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return Writer()


def end(writer: Any, folder: Path | None, **settings: Any) -> None:
    Suppression(SuppressSettings(**settings), writer, folder, SuppressionMetrics()).close()


def test_a_dry_run_restores(writer: Writer) -> None:
    end(writer, None)
    end(writer, None, at_exit="keep")
    assert writer.restored == ["suppress", "suppress"]


def test_without_one_that_stands_by_it_is_restored(writer: Writer, tmp_path: Path) -> None:
    end(writer, tmp_path)
    assert (writer.restored, list(tmp_path.iterdir())) == (["suppress"], [])


def test_for_one_that_stands_by_it_is_kept(writer: Writer, tmp_path: Path) -> None:
    with NodeLock(tmp_path, machine()) as lock, contextlib.closing(StandBy(tmp_path, machine(), lambda: None)):
        end(writer, lock.folder)
        assert (writer.restored, (lock.folder / KEPT).exists()) == ([], True)
        (lock.folder / KEPT).unlink()


@pytest.mark.parametrize("in_pod", [True, False])
def test_for_a_successor_it_is_kept_outside_of_pods(
    in_pod: bool, writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if in_pod:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    end(writer, tmp_path, at_exit="keep")
    assert (writer.restored, (tmp_path / KEPT).exists()) == (["suppress"] * in_pod, not in_pod)
