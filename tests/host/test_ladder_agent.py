"""`koordebpf run` with a ladder: what milder rungs do to a pod that grows, and that all of it is undone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordebpf.kernel.cgroup.hierarchy import ControllerMount, find_controllers
from koordebpf.policy.ladder_settings import Rung
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.host.live_agent import ROOT, LiveAgent
from tests.host.rigs.live_node import LiveNode
from tests.support.loads.workloads import Hog
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

RATE_MIB_S = 150
MOST_MIB = 1000  # of 1,024: it must not be the kernel's OOM killer that ends a story
QUOTA_PERCENT = 1


class Ladder:
    """A node with one best-effort pod, whose brake and freezer can be seen, and a hog in it."""

    def __init__(self, node: NodeCgroup, mounts: dict[str, ControllerMount]) -> None:
        self.node = node
        (self.container,) = node.add_pod("be")
        node.add_pod("ls", be=False)
        self._live = LiveNode(node, mounts)
        self.version = node.version
        pod = self._live.hierarchies.relative(self.container.parent)
        self.pod = self.container.parent
        if self.version == 2:
            self.brake, self.freezer = self.pod / "memory.high", self.pod / "cgroup.freeze"
            directories = [self.container]
        else:
            self.brake = mounts["cpu"].mount_point / pod / "cpu.cfs_quota_us"
            self.freezer = mounts["freezer"].mount_point / pod / "freezer.state"
            names = ("memory", "cpu", "freezer")
            directories = [find_controllers()[name].mount_point / pod / self.container.name for name in names]
        self._directories = directories
        self._hogs: list[Hog] = []

    def hog(self, mib: int = MOST_MIB) -> Hog:
        more = [part for each in self._directories[1:] for part in ("--cgroup", each / "cgroup.procs")]
        self._hogs.append(Hog(self._directories[0], mib, *more, rate_mib_s=RATE_MIB_S, hold_s=600))
        return self._hogs[-1]

    @property
    def is_frozen(self) -> bool:
        return self.freezer.read_text().strip() in ("1", "FROZEN")

    def usage_mib(self) -> float:
        name = "memory.current" if self.version == 2 else "memory.usage_in_bytes"
        return int((self.pod / name).read_text()) / MIB

    def growth_mib_s(self, for_s: float = 0.5) -> float:
        before, since = self.usage_mib(), time.monotonic()
        time.sleep(for_s)
        return (self.usage_mib() - before) / (time.monotonic() - since)

    def close(self) -> None:
        if self.freezer.exists() and self.is_frozen:
            self.freezer.write_text("0" if self.version == 2 else "THAWED")
        for hog in self._hogs:
            hog.stop()
        self._live.close()


@pytest.fixture
def ladder(node: NodeCgroup) -> Iterator[Ladder]:
    mounts = find_controllers()
    wanted = ("cpu", "cpuset") if node.version == 2 else ("cpu", "cpuset", "freezer")
    if missing := [name for name in wanted if name not in mounts]:
        pytest.skip(f"{OTHER_MACHINE}it has no {' and no '.join(missing)} controller")
    made = Ladder(node, {name: mounts[name] for name in wanted})
    yield made
    made.close()


def start(
    ladder: Ladder, folder: Path, *rungs: Rung, enforce: bool = True, threshold_percent: int = 50, **settings: Any
) -> LiveAgent:
    (folder / "config.yaml").write_text(
        json.dumps(
            {
                "apiVersion": "koordebpf.io/v1alpha1",
                "kind": "AgentConfiguration",
                "eviction": {
                    "ladder": {
                        "rungs": [rung.value for rung in rungs],
                        "quotaPercent": QUOTA_PERCENT,
                        "calm": "500ms",
                        **settings,
                    }
                },
            }
        )
    )
    manifest = ladder.node.write_manifest(
        folder / "pods.json", threshold_percent=threshold_percent, lower_percent=threshold_percent - 20
    )
    arguments = ["--config", folder / "config.yaml", "--pods", manifest, "--node-cgroup", ladder.node.path]
    return LiveAgent(folder, *arguments, *(["--enforce"] if enforce else []))


def changes(agent: LiveAgent, file: Path) -> list[tuple[str | None, str, str]]:
    """Return what the audit has of one file: old, new and result."""
    audited = [line["change"] for line in agent.lines() if line["schema"] == "koordebpf.write/v1"]
    return [(each["old"], each["new"], each["result"]) for each in audited if each["path"] == str(file)]


@pytest.mark.slow
def test_a_brake_slows_who_grows_and_is_taken_off_when_it_is_over(ladder: Ladder, tmp_path: Path) -> None:
    before = ladder.brake.read_text()
    with start(ladder, tmp_path, Rung.BRAKE, settle="60s") as agent:
        agent.started()
        hog = ladder.hog()
        until(lambda: ladder.usage_mib() > 200, "growth")
        free_mib_s = ladder.growth_mib_s()
        until(lambda: ladder.brake.read_text() != before, lambda: f"a brake, but: {agent.log}")
        braked_mib_s = ladder.growth_mib_s(1)
        held = ladder.brake.read_text().strip()
        print(f"growth {free_mib_s:.0f} MiB/s free, {braked_mib_s:.0f} MiB/s braked by {held}")
        assert braked_mib_s < free_mib_s / 2
        agent.said("brake is tried first")
        file = "memory.high" if ladder.version == 2 else "cpu.cfs_quota_us"
        assert agent.metric(f'koordebpf_file_writes_total{{file="{file}",result="written"}}') >= 1
        hog.process.kill()
        until(lambda: ladder.brake.read_text() == before, lambda: f"the brake off, but: {agent.log}")
        audited = until(lambda: len(found := changes(agent, ladder.brake)) > 1 and found, "the audit's lines")
        assert audited == [(before.strip(), held, "written"), (held, before.strip(), "written")]
        agent.said("the shortage is over: undone is brake")
        assert agent.stop() == 0
    assert not list(tmp_path.glob("run/*/writes.journal"))


@pytest.mark.slow
def test_a_freeze_stops_who_grows_and_ends_while_the_shortage_continues(ladder: Ladder, tmp_path: Path) -> None:
    before = ladder.freezer.read_text()
    with start(ladder, tmp_path, Rung.FREEZE, settle="60s", freezeMax="3s") as agent:
        agent.started()
        ladder.hog()
        until(lambda: ladder.is_frozen, lambda: f"a freeze, but: {agent.log}")
        usage_mib = until(lambda: ladder.growth_mib_s(0.05) == 0 and ladder.usage_mib(), "no growth")
        assert usage_mib < MOST_MIB
        seen_mib = [usage_mib]
        while now_mib := ladder.usage_mib():
            if not ladder.is_frozen:  # by then it may have run on
                break
            seen_mib.append(now_mib)
            time.sleep(0.05)
        assert seen_mib == sorted(seen_mib, reverse=True)  # memory that is freed late may make it less
        until(lambda: ladder.usage_mib() > usage_mib, "it grows again")
        agent.said("thawed, since no pod may be frozen for longer")
        assert agent.stop() == 0
        assert [result for *_, result in changes(agent, ladder.freezer)] == ["written", "written"]
    assert ladder.freezer.read_text() == before


@pytest.mark.story
@pytest.mark.parametrize("last", [pytest.param(Rung.EVICT, marks=pytest.mark.slow), Rung.KILL])
def test_what_was_not_enough_leads_to_the_end_and_no_pod_stays_frozen(
    ladder: Ladder, tmp_path: Path, last: Rung
) -> None:
    brake, freezer = ladder.brake.read_text(), ladder.freezer.read_text()
    # cgroup v2: a pod at memory.high hardly grows, and where no victim grows a freeze is left out.
    milder = [Rung.RECLAIM, Rung.FREEZE] if ladder.version == 2 else [Rung.BRAKE, Rung.RECLAIM, Rung.FREEZE]
    with start(ladder, tmp_path, *milder, last, settle="300ms") as agent:
        agent.started()
        hog = ladder.hog()
        assert hog.process.wait(patience(60)) == -signal.SIGKILL
        line = until(
            lambda: [each for each in agent.plans() if each["outcomes"][0]["result"] == "done"], f"it: {agent.log}"
        )[0]
        assert [outcome["name"] for outcome in line["outcomes"]] == ["be"]
        assert [result for *_, result in changes(agent, ladder.freezer)] == ["written", "written"], agent.log
        reclaimed = [result for *_, result in changes(agent, ladder.pod / "memory.reclaim")]
        assert reclaimed == (["unsupported"] if not (ladder.pod / "memory.reclaim").exists() else ["written"])
        until(lambda: ladder.brake.read_text() == brake, lambda: f"the brake off, but: {agent.log}")
        assert ladder.freezer.read_text() == freezer
        agent.said("freeze was not enough")
        assert agent.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("by", ["its successor", "the command"])
def test_what_a_killed_agent_froze_and_braked_is_restored(ladder: Ladder, tmp_path: Path, by: str) -> None:
    brake, freezer = ladder.brake.read_text(), ladder.freezer.read_text()
    with start(ladder, tmp_path, Rung.BRAKE, Rung.FREEZE, settle="300ms", freezeMax="60s") as agent:
        agent.started()
        hog = ladder.hog()
        until(lambda: ladder.is_frozen, lambda: f"a freeze, but: {agent.log}")
        agent.stop(signal.SIGKILL)
    assert ladder.is_frozen
    assert ladder.brake.read_text() != brake
    with start(ladder, tmp_path, enforce=False) as watcher:
        watcher.said("an agent that was killed has left 2 files of its ladder written and 0 pods frozen; ")
        assert watcher.stop() == 0
    assert ladder.is_frozen
    if by == "the command":
        (journal,) = tmp_path.glob("run/*/writes.journal")
        command = [sys.executable, "-m", "koordebpf", "restore", "--journal", journal]
        said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert str(ladder.freezer) in said
    else:
        # It has no pod to kill: a kill freezes, too.
        with start(ladder, tmp_path, threshold_percent=99) as successor:
            successor.started()
            until(lambda: changes(successor, ladder.freezer), "the audit's line")
            assert [result for *_, result in changes(successor, ladder.freezer)] == ["written"]
            successor.process.kill()
    assert (ladder.brake.read_text(), ladder.freezer.read_text()) == (brake, freezer)
    hog.process.kill()


@pytest.mark.slow
def test_a_dry_run_says_what_it_would_do(ladder: Ladder, tmp_path: Path) -> None:
    before = ladder.brake.read_text(), ladder.freezer.read_text()
    with start(ladder, tmp_path, Rung.BRAKE, Rung.FREEZE, Rung.EVICT, enforce=False, settle="300ms") as agent:
        agent.started()
        hog = ladder.hog(600)
        assert "(dry run)" in agent.said(f"{ladder.brake}: {before[0].strip()} → ")
        assert "(dry run)" in agent.said(f"{ladder.freezer}: {before[1].strip()} → ")
        agent.said("ladder: freeze was not enough")
        assert (ladder.brake.read_text(), ladder.freezer.read_text()) == before
        assert hog.process.poll() is None
        assert agent.stop() == 0
