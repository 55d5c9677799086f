"""The cgroups whose tasks are traced, as directories of the cpu controller, and what a wait is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordebpf.attribution.owner import Owner, OwnerKind
from koordebpf.events.run_queue import RunQueueWait
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, cgroup_id
from koordebpf.strategies.cpu_suppress.wake import TracedCgroups
from koordebpf.units import NS_PER_MS, NS_PER_S

BEST_EFFORT = "kubepods/besteffort"
KINDS = {
    "kubepods": OwnerKind.ROOT,
    BEST_EFFORT: OwnerKind.ROOT,
    "kubepods/web": OwnerKind.POD,
    "kubepods/web/a": OwnerKind.CONTAINER,
    f"{BEST_EFFORT}/batch": OwnerKind.POD,
    "db": OwnerKind.HOST_APPLICATION,
    "system": OwnerKind.SYSTEM,
}
OF = {BEST_EFFORT: "BestEffort"}


@pytest.fixture
def traced(tmp_path: Path) -> TracedCgroups:
    for path in KINDS:
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
    return TracedCgroups(ControllerMount(2, tmp_path))


def sort(traced: TracedCgroups, folder: Path) -> tuple[set[str], set[str]]:
    """Return the paths of both sides."""
    kinds = {**KINDS, "kubepods/gone": OwnerKind.POD}
    owned = {path: Owner(1, kind, path, kube_qos=OF.get(path)) for path, kind in kinds.items()}
    names = {cgroup_id(folder / path): path for path in KINDS}
    others, best_effort = traced.sort(owned)
    return {names[each] for each in others}, {names[each] for each in best_effort}


def test_pods_and_host_applications_are_traced_by_side(traced: TracedCgroups, tmp_path: Path) -> None:
    assert sort(traced, tmp_path) == ({"kubepods/web", "kubepods/web/a", "db"}, {f"{BEST_EFFORT}/batch"})


def test_they_are_sorted_again_after_a_change_and_once_a_second_at_most(traced: TracedCgroups) -> None:
    looks = [(1, 0), (1, 5), (2, 5), (3, 5.9), (3, 6), (3, 9)]
    assert [traced.are_due(version, int(at_s * NS_PER_S)) for version, at_s in looks] == [
        *(True, False, True, False, True, False)
    ]


def test_a_cause_names_who_waited_and_behind_whom(traced: TracedCgroups, tmp_path: Path) -> None:
    sort(traced, tmp_path)
    assert traced.cause("usage") == "latency-sensitive pods use more"
    assert traced.cause("scheduler") == "tasks wait for CPUs"  # it has seen none
    web, batch = (cgroup_id(tmp_path / path) for path in ("kubepods/web", f"{BEST_EFFORT}/batch"))
    traced.wait = RunQueueWait(0, web, 3 * NS_PER_MS, 0, 1)
    assert traced.cause("scheduler") == "a task of kubepods/web waited 3 ms for a CPU"
    assert traced.cause("pressure") == "tasks wait for CPUs"
    traced.wait = RunQueueWait(0, web, 3 * NS_PER_MS, batch, 1)
    assert traced.cause("scheduler") == f"a task of kubepods/web waited 3 ms for a CPU behind {BEST_EFFORT}/batch"
