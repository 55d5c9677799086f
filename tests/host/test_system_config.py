"""System configuration in a running agent: the machine's sysctls, by little, and features of a fake debugfs.

Scheduler features are served over FUSE, since a kernel in lockdown opens none; where this one does, its own are
written.
"""

from __future__ import annotations

import errno
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordebpf.act.writer.change import WriteResult
from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.places import Places
from koordebpf.act.writer.restore import restore_journal
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.kernel.cgroup.files import Sysctl
from koordebpf.policy.reconcile import DesiredState, SysctlWrite
from tests.contract.apiserver import until
from tests.host.fake_mount import mounted
from tests.host.live_agent import LiveAgent
from tests.support.kernel_files import SchedFeatures

MIN_FREE, SCALE = Path("/proc/sys/vm/min_free_kbytes"), Path("/proc/sys/vm/watermark_scale_factor")
GATES = "BEMemoryEvict=false,BECPUSuppress=false"
ROOT = Path(__file__).parents[2]


class Watermarks:
    """Both sysctls, as they are and as a NodeSLO makes them: a step up from where they are."""

    def __init__(self) -> None:
        self.before = self.now()
        total_kib = int(Path("/proc/meminfo").read_text().split()[1])
        self.factor = int(self.before[0]) * 10_000 // total_kib + 2
        self.scale = int(self.before[1]) + 2
        self.wanted = (f"{total_kib * self.factor // 10_000}\n", f"{self.scale}\n")

    def now(self) -> tuple[str, str]:
        return MIN_FREE.read_text(), SCALE.read_text()

    def put_back(self) -> None:
        if self.now() != self.before:
            MIN_FREE.write_text(self.before[0])
            SCALE.write_text(self.before[1])


@pytest.fixture
def watermarks() -> Iterator[Watermarks]:
    made = Watermarks()
    yield made
    made.put_back()


def arguments(folder: Path, *, gate: bool = True, **strategy: Any) -> tuple[object, ...]:
    return "--pods", nodeslo(folder, **strategy), "--feature-gates", f"{GATES},SystemConfig={str(gate).lower()}"


def nodeslo(folder: Path, **strategy: Any) -> Path:
    path = folder / "nodeslo.json"
    part = path.with_suffix(".part")
    node = {"apiVersion": "slo.koordinator.sh/v1alpha1", "kind": "NodeSLO", "metadata": {"name": "node"}}
    items = [node | {"spec": {"systemStrategy": strategy}}]
    part.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    part.rename(path)
    return path


def both(watermarks: Watermarks) -> dict[str, int]:
    return {"minFreeKbytesFactor": watermarks.factor, "watermarkScaleFactor": watermarks.scale}


def changes(agent: LiveAgent) -> list[dict[str, Any]]:
    return [line["change"] for line in agent.lines() if "change" in line]


def becomes(watermarks: Watermarks, wanted: tuple[str, str], agent: LiveAgent) -> None:
    until(lambda: watermarks.now() == wanted, lambda: f"{wanted}, but: {watermarks.now()}\n{agent.log}")


def test_the_watermarks_are_as_the_nodeslo_says_until_the_agent_stops(watermarks: Watermarks, tmp_path: Path) -> None:
    with LiveAgent(tmp_path, *arguments(tmp_path, **both(watermarks)), "--enforce") as agent:
        becomes(watermarks, watermarks.wanted, agent)
        audited = {(str(MIN_FREE), "systemConfig"), (str(SCALE), "systemConfig")}
        until(lambda: {(each["path"], each["owner"]) for each in changes(agent)} == audited, "lines of the audit")
        # a field that is taken away has its file restored, the other one stays
        nodeslo(tmp_path, watermarkScaleFactor=watermarks.scale)
        becomes(watermarks, (watermarks.before[0], watermarks.wanted[1]), agent)
        assert agent.stop() == 0
    assert watermarks.now() == watermarks.before


def test_a_dry_run_writes_nothing(watermarks: Watermarks, tmp_path: Path) -> None:
    with LiveAgent(tmp_path, *arguments(tmp_path, **both(watermarks))) as agent:
        agent.said("(dry run)")
        page = until(
            lambda: agent.metric('koordebpf_file_writes_total{file="vm.min_free_kbytes",result="dry_run"}'), "a count"
        )
        assert page >= 1
        assert watermarks.now() == watermarks.before
        assert agent.stop() == 0


@pytest.mark.slow
@pytest.mark.parametrize("gate", [False, True])
def test_what_a_killed_agent_left_is_restored(watermarks: Watermarks, tmp_path: Path, *, gate: bool) -> None:
    with LiveAgent(tmp_path, *arguments(tmp_path, **both(watermarks)), "--enforce") as agent:
        becomes(watermarks, watermarks.wanted, agent)
        agent.stop(signal.SIGKILL)
    assert watermarks.now() == watermarks.wanted
    # With the gate on the next one is asked for one of them alone.
    left = {"watermarkScaleFactor": watermarks.scale}
    with LiveAgent(tmp_path, *arguments(tmp_path, gate=gate, **left), "--enforce") as agent:
        becomes(watermarks, (watermarks.before[0], (watermarks.wanted if gate else watermarks.before)[1]), agent)
        assert agent.stop() == 0
    assert watermarks.now() == watermarks.before


@pytest.mark.slow
def test_restore_puts_back_what_a_killed_agent_left(watermarks: Watermarks, tmp_path: Path) -> None:
    with LiveAgent(tmp_path, *arguments(tmp_path, **both(watermarks)), "--enforce") as agent:
        becomes(watermarks, watermarks.wanted, agent)
        agent.stop(signal.SIGKILL)
        command = [sys.executable, "-m", "koordebpf", "restore", "--run-dir", str(agent.run_dir)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert watermarks.now() == watermarks.before


@pytest.mark.slow
def test_what_another_process_writes_is_set_right(watermarks: Watermarks, tmp_path: Path) -> None:
    with LiveAgent(tmp_path, *arguments(tmp_path, **both(watermarks)), "--enforce") as agent:
        becomes(watermarks, watermarks.wanted, agent)
        SCALE.write_text(str(watermarks.scale + 1))
        becomes(watermarks, watermarks.wanted, agent)
        assert agent.stop() == 0
    # what the other one wrote is what the file is restored to
    assert watermarks.now() == (watermarks.before[0], f"{watermarks.scale + 1}\n")


def test_what_cannot_be_used_is_named(watermarks: Watermarks, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"minFreeKbytesFactor": 9_000, "pageCacheLimitEnabled": 1, "schedFeatures": {"no": True}}
    with LiveAgent(tmp_path, *arguments(tmp_path, **fields), "--enforce") as agent:
        agent.said("spec.systemStrategy.minFreeKbytesFactor: ")
        agent.said("spec.systemStrategy.schedFeatures[no]: 1: ")
        name = 'koordebpf_file_writes_total{file="/sys/kernel/mm/pagecache_limit/enabled",result="unsupported"}'
        if not Path("/sys/kernel/mm/pagecache_limit/enabled").exists():
            until(lambda: agent.metric(name), lambda: f"a count of an Anolis file:\n{agent.log}")
        assert watermarks.now() == watermarks.before
        assert agent.stop() == 0


class TestFeatures:
    """On a fake of the file: one word a write(2), unknown ones refused, all words shown in one line."""

    @pytest.fixture
    def features(self) -> SchedFeatures:
        return SchedFeatures(START_DEBIT=True, NEXT_BUDDY=False, HRTICK=False)

    @pytest.fixture
    def places(self, features: SchedFeatures, tmp_path: Path) -> Iterator[Places]:
        for _ in mounted(tmp_path / "sys/kernel/debug", features.root()):
            yield Places({}, sysfs=tmp_path / "sys")

    @staticmethod
    def wanted(**features: bool) -> DesiredState:
        each = (SysctlWrite(Sysctl.SCHED_FEATURES, int(is_on), name) for name, is_on in features.items())
        return DesiredState("a test", sysctls=tuple(each))

    def test_one_word_a_write_and_each_is_restored(
        self, places: Places, features: SchedFeatures, tmp_path: Path
    ) -> None:
        before = dict(features.features)
        with Journal(tmp_path / "journal") as journal:
            writer = CgroupWriter(places, journal, enforce=True)
            report = writer.apply(self.wanted(START_DEBIT=False, NEXT_BUDDY=True, HRTICK=False), 0, "systemConfig")
            assert [(each.new, each.result) for each in report.changes] == [
                ("NEXT_BUDDY", WriteResult.WRITTEN),
                ("NO_START_DEBIT", WriteResult.WRITTEN),
            ]
            assert features.features == {"START_DEBIT": False, "NEXT_BUDDY": True, "HRTICK": False}
            assert writer.apply(self.wanted(START_DEBIT=False), 1, "systemConfig").changes == ()
            writer.restore(2, owner="systemConfig", unwanted=True)
            assert features.features == before | {"START_DEBIT": False}
            # an operator's own switch is not ours to put back
            features.features["HRTICK"] = True
            assert writer.restore(3, owner="systemConfig").left == ()
        assert features.features == before | {"HRTICK": True}
        assert features.written == ["NEXT_BUDDY", "NO_START_DEBIT", "NO_NEXT_BUDDY", "START_DEBIT"]

    def test_after_a_kill_the_journal_restores_them(
        self, places: Places, features: SchedFeatures, tmp_path: Path
    ) -> None:
        before = dict(features.features)
        with Journal(tmp_path / "journal") as journal:
            CgroupWriter(places, journal, enforce=True).apply(self.wanted(START_DEBIT=False, NEXT_BUDDY=True), 0)
        report = restore_journal(tmp_path / "journal", places, 1)
        assert [each.result for each in report.changes] == [WriteResult.WRITTEN] * 2
        assert features.features == before

    @pytest.mark.parametrize("error", [errno.EPERM, errno.EROFS, errno.EIO])
    def test_a_refusal_is_named_and_nothing_is_left(
        self, places: Places, features: SchedFeatures, tmp_path: Path, error: int
    ) -> None:
        features.refusal = error
        with Journal(tmp_path / "journal") as journal:
            writer = CgroupWriter(places, journal, enforce=True)
            unknown, known = writer.apply(self.wanted(NOT_THERE=True, HRTICK=True), 0).changes
            assert (unknown.result, unknown.detail.rpartition(": ")[2]) == (
                WriteResult.REFUSED,
                "must be a scheduler feature of this kernel",
            )
            assert (known.result, known.detail) == (WriteResult.REFUSED, errno.errorcode[error])
            assert writer.apply(self.wanted(NOT_THERE=True, HRTICK=True), 1).changes == ()  # not each second
            assert writer.restore(2).left == ()

    def test_another_process_is_corrected_so_often_and_then_left_alone(
        self, places: Places, features: SchedFeatures, tmp_path: Path
    ) -> None:
        with Journal(tmp_path / "journal") as journal:
            writer = CgroupWriter(places, journal, enforce=True)
            results = []
            for second in range(0, 600, 15):
                features.features["HRTICK"] = False
                report = writer.apply(self.wanted(HRTICK=True), second * 1_000_000_000)
                results += [each.result for each in report.changes]
        assert results == [WriteResult.WRITTEN] * 13 + [WriteResult.YIELDED]
        assert features.features["HRTICK"] is False

    def test_before_linux_5_13_the_file_was_elsewhere(self, tmp_path: Path) -> None:
        old, key = tmp_path / "kernel/debug/sched_features", ("A", Sysctl.SCHED_FEATURES)
        assert Places({}, sysfs=tmp_path).locate(key) == tmp_path / "kernel/debug/sched/features"
        old.parent.mkdir(parents=True)
        old.write_text("A \n")
        assert Places({}, sysfs=tmp_path).locate(key) == old
        (old.parent / "sched").mkdir()
        (old.parent / "sched/features").write_text("A \n")
        assert Places({}, sysfs=tmp_path).locate(key) == tmp_path / "kernel/debug/sched/features"


# In a mount namespace of its own, so that no other process finds debugfs there.
IN_DEBUGFS = ("unshare", "-m", "sh", "-c", 'mount -t debugfs none /sys/kernel/debug && exec "$@"', "sh")


def test_this_kernels_own_features_are_written_or_the_refusal_is_named(tmp_path: Path) -> None:
    shown = subprocess.run([*IN_DEBUGFS, "cat", "/sys/kernel/debug/sched/features"], capture_output=True, check=False)
    words = shown.stdout.decode().split()
    name = words[0].removeprefix("NO_") if words else "NEXT_BUDDY"
    wanted = {name: bool(words) and words[0] != name}
    manifest = arguments(tmp_path, schedFeatures=wanted)
    with LiveAgent(tmp_path, *manifest, "--enforce", before=IN_DEBUGFS) as agent:
        until(lambda: changes(agent), "a line of the audit")
        result = "written" if words else ("refused" if b"not permitted" in shown.stderr else "unsupported")
        assert changes(agent)[0]["result"] == result
        assert changes(agent)[0]["new"] == (name if wanted[name] else f"NO_{name}")
        assert agent.stop() == 0
    again = subprocess.run([*IN_DEBUGFS, "cat", "/sys/kernel/debug/sched/features"], capture_output=True, check=False)
    assert again.stdout == shown.stdout
