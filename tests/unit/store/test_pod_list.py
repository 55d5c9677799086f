"""The list of pods that an agent leaves for the next one."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koordebpf.kube.cache.objects import ClusterState, Pod
from koordebpf.store import pod_list
from koordebpf.store.pod_list import KeptList, KeptSource
from koordebpf.units import NS_PER_S
from tests.support.patience import patience
from tests.support.played_waits import PlayedWaits
from tests.support.values.builders import pod

MAX_AGE_NS = 600 * NS_PER_S
A, B = pod("a"), pod("b")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pods.json"


@pytest.fixture
def opened(path: Path) -> Iterator[Any]:
    lists: list[KeptList] = []

    def open_list(node: str = "n1", max_age_ns: int = MAX_AGE_NS) -> KeptList:
        lists.append(KeptList(path, node, max_age_ns))
        return lists[-1]

    yield open_list
    for each in lists:
        each.close()


def state(*pods: Pod, age_s: float = 0, **more: Any) -> ClusterState:
    synced_ns = time.monotonic_ns() - int(age_s * NS_PER_S)
    return ClusterState(version=7, synced_at_ns=synced_ns, pods=pods, **more)


def test_the_next_one_knows_what_the_last_one_wrote(opened: Any, path: Path) -> None:
    slo = msgspec.Raw(b'{"spec":{"a":1}}')
    before = state(A.pod, B.pod, age_s=5, nodeslo=slo)
    opened()._write(before, {A.pod.uid: 17, B.pod.uid: None})
    assert path.stat().st_mode & 0o777 == 0o600
    found = opened()
    assert found.state is not None
    assert found.state.pods == (A.pod, B.pod)
    assert bytes(found.state.nodeslo) == bytes(slo)
    assert found.cgroups == {A.pod.uid: 17}
    assert abs(found.state.synced_at_ns - before.synced_at_ns) < NS_PER_S


def test_what_is_noted_all_the_time_is_written_soon_and_then_once_a_minute(
    opened: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready, kept, names = threading.Event(), [], []

    def meanwhile() -> None:
        ready.wait(patience(10))
        names.append(json.loads(path.read_text())["pods"][0]["metadata"]["name"] if path.exists() else None)
        kept[0].update(state(pod(f"noted-{len(names)}").pod), {})

    waits = PlayedWaits(5, meanwhile)
    waits.play_in(monkeypatch, pod_list)
    kept.append(opened())
    ready.set()
    assert waits.ended.wait(patience(10))
    assert waits.seconds == [2, 60, 60, 60, 60]
    assert names == [None, "noted-1", "noted-2", "noted-3", "noted-4"]


def test_while_nothing_is_noted_it_looks_again_soon(opened: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits = PlayedWaits(3)
    waits.play_in(monkeypatch, pod_list)
    opened()
    assert waits.ended.wait(patience(10))
    assert waits.seconds == [2, 2, 2]
    assert not path.exists()


def test_a_list_of_another_node_another_boot_or_too_old_is_none(opened: Any, path: Path) -> None:
    writer = opened()
    writer._write(state(A.pod), {})
    assert opened(node="n2").state is None
    text = json.loads(path.read_text())
    path.write_text(json.dumps(text | {"boot_id": "another"}))
    assert opened().state is None
    writer._write(state(A.pod, age_s=700), {})
    assert opened().state is None


def test_a_list_of_the_future_is_none(opened: Any) -> None:
    opened()._write(state(A.pod, age_s=-60), {})
    assert opened().state is None


def test_a_thousand_pods_are_kept_at_most(opened: Any) -> None:
    opened()._write(state(*[A.pod] * 1001), {})
    found = opened()
    assert found.state is not None and len(found.state.pods) == 1000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"schema": "koordebpf.pods/v9"}',
        "x" * 1000,
        pytest.param('{"later": ' * 20_000, id="deep"),
    ],
)
def test_rubbish_is_none(opened: Any, path: Path, text: str) -> None:
    path.write_text(text)
    assert opened().state is None


def test_a_link_in_its_place_is_not_followed(opened: Any, path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    writer = opened()
    writer._write(state(A.pod), {})
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert opened().state is None
    path.with_suffix(".part").symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    writer._write(state(B.pod), {})
    assert elsewhere.read_bytes() == before


def test_a_pod_with_large_annotations_costs_itself_alone(opened: Any) -> None:
    meta = msgspec.structs.replace(B.pod.metadata, annotations={"note": "x" * 200_000})
    large = msgspec.structs.replace(B.pod, metadata=meta)
    opened()._write(state(A.pod, large), {A.pod.uid: 1, B.pod.uid: 2})
    found = opened()
    assert found.state is not None
    assert found.state.pods == (A.pod,)
    assert found.cgroups == {A.pod.uid: 1}


class _Source:
    name = "api"

    def __init__(self) -> None:
        self.now = ClusterState(version=0, synced_at_ns=0)

    def state(self) -> ClusterState:
        return self.now


class TestTheSource:
    def test_shows_the_kept_list_until_the_first_one(self, opened: Any) -> None:
        opened()._write(state(A.pod, age_s=30), {})
        source, kept = _Source(), opened()
        shown = KeptSource(source, kept)  # type: ignore[arg-type]
        first = shown.state()
        assert (first.pods, first.version) == ((A.pod,), 1)
        source.now = ClusterState(version=1, synced_at_ns=0, problems=("list pods: no connection",))
        second = shown.state()
        assert (second.pods, second.problems, second.version) == ((A.pod,), ("list pods: no connection",), 2)
        assert second.synced_at_ns == first.synced_at_ns
        source.now = state(B.pod)
        assert shown.state().pods == (B.pod,)
        assert shown.state().version > second.version
        assert kept.state is None

    def test_a_server_that_refuses_is_there(self, opened: Any) -> None:
        opened()._write(state(A.pod, age_s=30), {})
        source = _Source()
        source.now = ClusterState(version=1, synced_at_ns=0, is_denied=True)
        assert KeptSource(source, opened()).state().is_denied  # type: ignore[arg-type]

    def test_without_a_kept_list_it_is_the_source(self, opened: Any) -> None:
        source = _Source()
        shown = KeptSource(source, opened())  # type: ignore[arg-type]
        assert shown.state().synced_at_ns == 0
        source.now = state(A.pod)
        assert shown.state().pods == (A.pod,)
