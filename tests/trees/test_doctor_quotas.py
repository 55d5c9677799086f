"""What `koordebpf doctor` says of CPU quotas above their containers' limits, on a tree of cgroup files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from koordebpf.act.writer.journal import JOURNAL_PATH, Journal
from koordebpf.act.writer.places import Original
from koordebpf.attribution.owner import Owner, OwnerKind
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.kube.cache.objects import Pod
from koordebpf.report.http.local_socket import LocalSocket
from koordebpf.report.http.routes import DecisionServer
from koordebpf.report.known import KnownObjects
from koordebpf.tools.doctor.checks import quota_notes

LIMIT = {"resources": {"limits": {"cpu": "100m"}}}
ABOVE, WITHIN = 20_000, 10_000  # µs of 100 ms


class Index(dict[int, Owner]):
    """As much of the index of cgroups as is asked."""

    def owner(self, cgroup_id: int) -> Owner | None:
        return self.get(cgroup_id)


class Node:
    """A node whose agent knows pods with one container each; `quotas` are their files."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "cgroup"
        self.pods: list[dict[str, Any]] = []
        self.index = Index()
        self.asked: Callable[[int], None] = lambda times: None
        self._times = 0

    def add(self, name: str, quota: int, period: int = 100_000, kind: OwnerKind = OwnerKind.CONTAINER) -> None:
        status = {"containerStatuses": [{"name": name, "containerID": f"containerd://{name}", **LIMIT}]}
        spec = {"containers": [{"name": name, **LIMIT}]}
        self.pods.append({"metadata": {"name": name, "namespace": "n", "uid": name}, "spec": spec, "status": status})
        self.index[len(self.index)] = Owner(0, kind, f"/kubepods/{name}", container_id=name)
        (self.root / "kubepods" / name).mkdir(parents=True)
        self.write(name, quota)
        (self.root / "kubepods" / name / "cpu.cfs_period_us").write_text(f"{period}\n")

    def write(self, name: str, quota: int) -> None:
        (self.root / "kubepods" / name / "cpu.cfs_quota_us").write_text(f"{quota}\n")

    def known(self, _: str) -> KnownObjects:
        self._times += 1
        self.asked(self._times)
        return KnownObjects("1", tuple(msgspec.convert(each, Pod) for each in self.pods))

    @contextlib.contextmanager
    def agent(self) -> Iterator[None]:
        local = LocalSocket(self.folder / "machine", acts=True)
        with contextlib.closing(DecisionServer(local, tuple, tuple, pages={"/known": self.known})):
            yield

    def notes(self) -> list[tuple[str, str, bool]]:
        """Return how, reason and whether there is a remedy; each note works and is of the same signal."""
        notes = quota_notes(SimpleNamespace(index=self.index), self.folder)  # type: ignore[arg-type]
        assert all(each.works and each.signal == "CPU quotas" for each in notes)
        return [(each.how, each.reason, bool(each.remedy)) for each in notes]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(tmp_path)
    monkeypatch.setattr(
        "koordebpf.tools.doctor.checks.find_controllers", lambda: {"cpu": ControllerMount(1, made.root)}
    )
    return made


def test_without_an_agent_or_without_pods_nothing_is_said(node: Node) -> None:
    assert node.notes() == []
    with node.agent():
        assert node.notes() == []


def test_those_above_their_limit_are_named_three_at_most(node: Node) -> None:
    node.add("d", WITHIN)
    node.add("p", ABOVE, kind=OwnerKind.POD)  # no container
    with node.agent():
        assert node.notes() == [("none of 1 is above its container's limit", "", False)]
        for name in ("c", "a", "b"):
            node.add(name, ABOVE)
        said = "; ".join(f"n/{name} {name} has 20000 of 100000 µs for a limit of 100m" for name in "abc")
        assert node.notes() == [("3 of 4 are above their containers' limits", said, True)]
        node.add("e", ABOVE)
        assert node.notes() == [("4 of 5 are above their containers' limits", f"{said}; …", True)]


def test_what_is_so_in_one_of_two_looks_only_is_not_said(node: Node) -> None:
    node.add("a", ABOVE)
    node.add("b", WITHIN)

    def another_writes(times: int) -> None:
        if times == 2:
            node.write("a", WITHIN)
            node.write("b", ABOVE)

    node.asked = another_writes
    with node.agent():
        assert node.notes() == [("none of 2 is above its container's limit", "", False)]


@pytest.mark.parametrize(
    ("change", "runs"),
    [
        ({"metadata": {"name": "k", "uid": "k", "labels": {"koord-app": "koordlet"}}}, True),
        ({"spec": {"containers": [{"name": "koordlet"}]}}, True),
        ({"metadata": {"name": "k", "uid": "k", "labels": {"koord-app": "manager"}}}, False),
        (
            {"metadata": {"name": "k", "uid": "k", "labels": {"koord-app": "koordlet"}}, "status": {"phase": "Failed"}},
            False,
        ),
    ],
)
def test_where_koordlet_runs_its_cpu_burst_may_have_raised_them(change: dict[str, Any], runs: bool, node: Node) -> None:
    node.add("a", ABOVE)
    bare = {"metadata": {"name": "k", "uid": "k"}, "spec": {"containers": []}, "status": {"phase": "Running"}}
    node.pods.append({**bare, **change})
    with node.agent():
        ((how, reason, has_remedy),) = node.notes()
    assert ("koordlet runs here" in how, bool(reason), has_remedy) == (runs, not runs, not runs)


@pytest.mark.parametrize(("is_ours", "is_said"), [(True, False), (False, True)])
def test_of_one_that_the_agent_raised_what_was_before_counts(is_ours: bool, is_said: bool, node: Node) -> None:
    node.add("a", ABOVE)
    inode = (node.root / "kubepods/a/cpu.cfs_quota_us").stat().st_ino + (not is_ours)
    with contextlib.closing(Journal(node.folder / "machine" / JOURNAL_PATH.name)) as journal:
        journal.record({("kubepods/a", CgroupFile.CPU_QUOTA): Original(f"{WITHIN}\n", inode)})
    with node.agent():
        ((how, _, _),) = node.notes()
    assert how.startswith("1 of 1 are above") is is_said


def test_one_without_a_quota_and_one_that_is_gone_are_not_compared(node: Node) -> None:
    node.add("a", WITHIN)
    node.add("free", -1)
    node.add("gone", ABOVE)
    (node.root / "kubepods/gone/cpu.cfs_period_us").unlink()
    with node.agent():
        assert node.notes() == [("none of 1 is above its container's limit", "", False)]


ODD = {
    "a quantity that is none": {"containers": [{"name": "odd", "resources": {"limits": {"cpu": "one"}}}]},
    "one that is negative": {"containers": [{"name": "odd", "resources": {"limits": {"cpu": "-1"}}}]},
    "one beyond all": {"containers": [{"name": "odd", "resources": {"limits": {"cpu": "9e999"}}}]},
    "no containers": {"containers": []},
    "of its own level": {"containers": [{"name": "odd"}], "resources": {"limits": {"cpu": "x"}}},
}


@pytest.mark.parametrize("spec", ODD.values(), ids=ODD)
def test_a_pod_that_is_odd_hides_no_other(spec: dict[str, Any], node: Node) -> None:
    status = {"containerStatuses": [{"name": "odd", "containerID": "containerd://odd"}]}
    node.add("odd", ABOVE)
    node.pods[0] |= {"spec": spec, "status": status}
    node.add("a", ABOVE)
    with node.agent():
        ((_, reason, _),) = node.notes()
    assert "n/a a has 20000 of 100000 µs for a limit of 100m" in reason
