"""An agent that is killed in the middle of a kill, its victim frozen: who ends that, and what the audit has of it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.hierarchy import ControllerMount, find_controllers
from koordebpf.report.pages.explain import decode_audit, explained
from koordebpf.state.outcome import Result
from koordebpf.store.audit_record import AuditRecord
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.host.live_agent import ROOT, LiveAgent
from tests.host.test_ladder_agent import Ladder
from tests.support.nodes import NodeCgroup
from tests.support.patience import patience


class Frozen(Ladder):
    """A node whose agent dies while its best-effort pod is frozen; its successors have no pod to evict."""

    def __init__(self, node: NodeCgroup, folder: Path, mounts: dict[str, ControllerMount]) -> None:
        super().__init__(node, mounts)
        self.folder = folder

    def common(self, threshold_percent: int) -> list[object]:
        manifest = self.node.write_manifest(
            self.folder / "pods.json", threshold_percent=threshold_percent, lower_percent=threshold_percent - 5
        )
        return ["--pods", manifest, "--node-cgroup", self.node.path, "--executor", "cgroup"]

    def kill_agent(self, moment: str) -> None:
        """Have an agent die in the middle of killing the pod."""
        if moment == "signalled" and self.version == 2:
            pytest.skip(f"{OTHER_MACHINE}on cgroup v2 the kill thaws as soon as it has signalled")
        command = [sys.executable, "-m", "tests.host.dying_agent", moment, *self.common(40), "--enforce"]
        command += ["--listen", "", "--run-dir", self.folder / "run"]
        dying = subprocess.Popen([*map(str, command)], cwd=ROOT, stderr=subprocess.DEVNULL)
        assert dying.wait(patience(60)) == -signal.SIGKILL
        assert self.is_frozen

    def successor(self, *arguments: object) -> LiveAgent:
        return LiveAgent(self.folder, *self.common(99), *arguments)


@pytest.fixture
def frozen(node: NodeCgroup, tmp_path: Path) -> Iterator[Frozen]:
    mounts = find_controllers()
    wanted = ("cpu", "cpuset") if node.version == 2 else ("cpu", "cpuset", "freezer")
    if missing := [name for name in wanted if name not in mounts]:
        pytest.skip(f"{OTHER_MACHINE}it has no {' and no '.join(missing)} controller")
    if (node.path / "cgroup.kill").exists():
        pytest.skip(f"{OTHER_MACHINE}cgroup.kill, since Linux 5.14, kills without a freeze")
    made = Frozen(node, tmp_path, {name: mounts[name] for name in wanted})
    yield made
    made.close()


def interrupted(agent: LiveAgent) -> AuditRecord:
    (record,) = [each for each in decode_audit(agent.audit.read_bytes(), "audit")[0] if each.interrupted]
    return record


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["frozen", "signalled"])
def test_its_successor_finishes_the_kill_and_audits_it(frozen: Frozen, moment: str) -> None:
    hog = frozen.hog(700)
    frozen.kill_agent(moment)
    assert hog.process.poll() is None
    with frozen.successor("--enforce") as agent:
        assert hog.process.wait(patience(30)) == -signal.SIGKILL
        agent.said("finished now: killed ")
        agent.becomes_ready()
        record = interrupted(agent)
        assert [(each.name, each.executor, each.result) for each in record.outcomes] == [("be", "cgroup", Result.DONE)]
        assert "finished now" in " ".join(explained(record).split())
        ticks = agent.metric("koordebpf_ticks_total")
        until(lambda: agent.metric("koordebpf_ticks_total") >= ticks + 3, "further ticks")
        assert not [each for each in agent.plans() if not each.get("interrupted")]
        assert agent.stop() == 0
    assert not frozen.is_frozen


@pytest.mark.slow
def test_another_cgroup_in_its_place_is_thawed_and_no_task_in_it_dies(frozen: Frozen) -> None:
    hog = frozen.hog(700)
    frozen.kill_agent("frozen")
    # GIVEN the file names a cgroup that was removed: another one has its name
    (file,) = (frozen.folder / "run").glob("*/in-flight.jsonl")
    own = str(frozen.pod.stat().st_ino)
    file.write_text(file.read_text().replace(f'"cgroup_id":{own},"version"', f'"cgroup_id":{int(own) + 1},"version"'))
    with frozen.successor("--enforce") as agent:
        agent.said("another cgroup is in its place, which is thawed")
        agent.becomes_ready()
        assert not frozen.is_frozen
        assert [each.result for each in interrupted(agent).outcomes] == [Result.GONE]
        assert hog.process.poll() is None
        assert agent.stop() == 0


@pytest.mark.slow
def test_an_agent_that_only_watches_thaws_it_and_no_pod_dies(frozen: Frozen) -> None:
    hog = frozen.hog(700)
    frozen.kill_agent("frozen")
    with frozen.successor() as agent:
        agent.said("has left pod default/be frozen in the middle of a kill: it is thawed")
        assert not frozen.is_frozen
        agent.becomes_ready()
        assert "files of its ladder" not in agent.log
        assert agent.stop() == 0
    assert hog.process.poll() is None  # it had no signal, and gets none


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["frozen", "signalled"])
def test_the_command_thaws_it_where_no_agent_follows(frozen: Frozen, moment: str) -> None:
    hog = frozen.hog(700)
    frozen.kill_agent(moment)
    (file,) = (frozen.folder / "run").glob("*/in-flight.jsonl")
    journal = frozen.folder / "none.journal"
    command = [sys.executable, "-m", "koordebpf", "restore", "--journal", str(journal), "--in-flight", str(file)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert f"{frozen.freezer.parent}: thawed: default/be was being killed" in said
    assert not frozen.is_frozen
    if moment == "signalled":
        assert hog.process.wait(patience(30)) == -signal.SIGKILL
    else:
        assert hog.process.poll() is None
