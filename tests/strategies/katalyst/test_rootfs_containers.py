"""Which containers' layers are looked at, and that none is where no plugin decides from them."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from koordebpf.strategies.katalyst.inner import InnerSettings
from koordebpf.strategies.katalyst.plugins.rootfs import RootfsOveruseSettings, RootfsPressureSettings
from koordebpf.strategies.katalyst.rootfs import Container, NodeContainers
from koordebpf.strategies.katalyst.run import open_rootfs
from koordebpf.strategies.katalyst.settings import KatalystSettings
from tests.unit.attribution.test_index import APP, APP_ID, POD_ID, SIDECAR, mkdir, pod, rmdir, walked

MOUNT = Path("/sys/fs/cgroup")
AT = f"{MOUNT}/kubepods/podu-1/{APP}"


def test_containers_of_known_pods_are_and_their_sandbox_is_not() -> None:
    index = walked([pod(containers={APP: "app"})])
    assert NodeContainers(index, MOUNT)() == {"u-1": (Container(APP, (AT,)),)}
    assert NodeContainers(walked([]), MOUNT)() == {}


def test_processes_may_be_one_level_down() -> None:
    index = walked([pod(containers={APP: "app"})])
    for number in range(30, 60):
        index.born(mkdir(number, APP_ID, f"n{number}"))
    ((found,),) = NodeContainers(index, MOUNT)().values()
    assert found.cgroups[0] == AT
    assert len(found.cgroups) == 5
    assert all(each.startswith(f"{AT}/n") for each in found.cgroups[1:])


def test_changes_are_seen_a_second_later_at_the_latest(monkeypatch: pytest.MonkeyPatch) -> None:
    index = walked([pod(containers={APP: "app", SIDECAR: "sidecar"})])
    at_ns = [time.monotonic_ns()]
    monkeypatch.setattr(time, "monotonic_ns", lambda: at_ns[0])
    containers = NodeContainers(index, MOUNT)
    before = containers()
    index.born(mkdir(23, POD_ID, SIDECAR))
    assert containers() is before
    at_ns[0] += 10**9
    assert {each.container_id for each in containers()["u-1"]} == {APP, SIDECAR}
    index.died(rmdir(23))
    at_ns[0] += 10**9
    assert containers() == before
    at_ns[0] += 10**12
    assert containers() is containers()


class TestOpening:
    WATCH = SimpleNamespace(index=walked([]), scope=SimpleNamespace(hierarchy=SimpleNamespace(mount_point=MOUNT)))

    @pytest.mark.parametrize(
        ("settings", "is_open"),
        [
            (KatalystSettings(), False),
            (KatalystSettings(inner=InnerSettings(rootfsPressure=RootfsPressureSettings(is_on=True))), True),
            (KatalystSettings(inner=InnerSettings(rootfsOveruse=RootfsOveruseSettings(is_on=True))), True),
            (
                KatalystSettings(
                    plugins=("*", "-rootfs-overuse-eviction-plugin"),
                    inner=InnerSettings(rootfsOveruse=RootfsOveruseSettings(is_on=True)),
                ),
                False,
            ),
        ],
    )
    def test_it_runs_only_where_a_plugin_decides_from_it(self, settings: KatalystSettings, is_open: bool) -> None:
        with contextlib.ExitStack() as stack:
            assert (open_rootfs(settings, self.WATCH, stack) is not None) is is_open
            assert ("rootfs" in {each.name for each in threading.enumerate()}) is is_open
        assert "rootfs" not in {each.name for each in threading.enumerate()}
