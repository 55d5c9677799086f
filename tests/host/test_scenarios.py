"""The scenarios of vagrant/, played as a person plays them: each runs as expected, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from koordebpf.kernel.bpf.deadman import support_of_dead_man
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from tests.conftest import OTHER_MACHINE
from tests.host.overlay import ROOT, RootCopy, own_swap, root_copy
from tests.support.patience import patience
from vagrant.scenarios import play
from vagrant.scenarios.scenario import Expected, Felt, Scenario, load, names

__all__ = ["own_swap", "root_copy"]
pytestmark = pytest.mark.usefixtures("require_root")

RUN = ROOT / "vagrant/scenarios/run"


def started(*arguments: str) -> subprocess.Popen[str]:
    # A shell's background job has SIGINT ignored, and a shell cannot undo that.
    command = ["env", "--default-signal=INT", RUN, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


# Longer than it waits for each line: it says itself what was not said.
def played(name: str, timeout_s: float = 300) -> tuple[int, str]:
    with started(name) as process:
        out, _ = process.communicate(timeout=patience(timeout_s))
    assert left_of(process.pid) == []
    return process.returncode, out


def settings() -> dict[str, str]:
    """Return what a scenario that has a whole machine may change of its kernel."""
    names = ("min_free_kbytes", "watermark_scale_factor")
    return {name: Path("/proc/sys/vm", name).read_text() for name in names}


def left_of(pid: int) -> list[str]:
    """Return the cgroup, the files and the processes that are left of a run."""
    name = f"koordebpf-demo-{pid}"
    places = (find_memory_hierarchy().mount_point, *map(Path, ("/tmp", "/run", "/run/koordebpf")))
    left = [str(path) for place in places for path in place.glob(f"{name}*")]
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and name.encode() in (entry / "environ").read_bytes():
                left.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # it ended
    return left


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [name for name in names() if not load(name).needs_swap and not load(name).needs_v2 and load(name).felt is None],
)
def test_it_is_reported_as_expected(name: str) -> None:
    code, out = played(name)
    assert code == 0, out
    assert out.splitlines()[-2] == f"{name}: as expected"
    version = find_memory_hierarchy().version
    assert out.count("  said by ") == sum(play.is_expected(each, version) for each in load(name).expects)


@pytest.mark.timeout(570)  # on an emulated CPU that others use it takes eight minutes
def test_swap_death(root_copy: RootCopy, own_swap: str) -> None:
    root_copy.run(ROOT / "vagrant/provision/swap.sh", "768", own_swap)
    code, out = played("swap-death")
    assert code == 0, out


@pytest.mark.slow
@pytest.mark.timeout(570)
def test_idle_page_cache() -> None:
    code, out = played("idle-page-cache")
    if find_memory_hierarchy().version == 1:
        assert (code, out.count("systemd.unified_cgroup_hierarchy=1")) == (2, 1)
    else:
        assert code == 0, out


@pytest.mark.story
@pytest.mark.slow
@pytest.mark.timeout(570)
@pytest.mark.parametrize("name", [name for name in names() if load(name).felt is not None])
def test_a_pod_feels_the_strategy(name: str) -> None:
    before = settings()
    code, out = played(name, 400)
    assert settings() == before
    if load(name).needs_dead_man and not support_of_dead_man().works:
        assert (code, out.count("Boot Linux 6.13 or later")) == (2, 1)
        return
    if load(name).needs_own_machine and play.OWN_MACHINE not in os.environ:
        assert (code, out.count("fills the memory of the whole machine")) == (2, 1)
        assert "KOORDEBPF_OWN_MACHINE=1" in out
        return
    if load(name).needs_v2 and find_memory_hierarchy().version == 1:
        assert (code, out.count("systemd.unified_cgroup_hierarchy=1")) == (2, 1)
        return
    assert code == 0, out
    assert out.splitlines()[-2] == f"{name}: as expected"
    assert (out.count("  said by "), out.count("  felt by ")) == (len(load(name).expects), 1)


def test_without_swap_it_says_what_gives_it() -> None:
    if len(Path("/proc/swaps").read_text().splitlines()) > 1:
        pytest.skip(f"{OTHER_MACHINE}it has swap")
    code, out = played("swap-death")
    assert (code, out.count("vagrant/provision/swap.sh")) == (2, 1)


@pytest.mark.parametrize(
    ("without", "with_it", "expected"),
    [(30.0, 10.0, True), (29.9, 10.0, False), (30.0, 0.0, True), (0.0, 0.0, False), (10.0, 30.0, False)],
)
def test_what_counts_as_felt(without: float, with_it: float, expected: bool) -> None:
    assert play.is_felt(without, with_it, 3) is expected


class TestWhatIsNotAsExpected:
    def play(self, scenario: Scenario, monkeypatch: pytest.MonkeyPatch) -> tuple[bool, list[str]]:
        monkeypatch.setattr(play, "_SAID_S", 0.5)
        lines: list[str] = []
        return play.play("limit-thrash", scenario, lines.append), [line.strip() for line in lines]

    @pytest.mark.slow
    def test_a_strategy_that_is_not_felt(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # The clock at its start, which is higher the second time.
        felt = Felt(by="tight", says=r"^ready (\d+)$", unit="ns", times=1, factor=1)
        is_well, lines = self.play(msgspec.structs.replace(load("limit-thrash"), expects=(), felt=felt), monkeypatch)
        assert not is_well
        assert [line for line in lines if line.startswith("felt by the pod tight: ") and "NOT better by 1 " in line]

    @pytest.mark.slow
    def test_a_number_that_is_not_printed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(play, "_FELT_S", 0.5)
        felt = Felt(by="tight", says="nothing of it", unit="ns", times=1, factor=1)
        is_well, lines = self.play(msgspec.structs.replace(load("limit-thrash"), expects=(), felt=felt), monkeypatch)
        assert not is_well
        assert "NOT SAID by the pod tight 1 times: nothing of it" in lines

    @pytest.mark.slow
    def test_a_sentence_that_is_not_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        expects = (Expected("run", "evicting default/tight"), Expected("plan", "evicting default/web"))
        is_well, lines = self.play(msgspec.structs.replace(load("limit-thrash"), expects=expects), monkeypatch)
        assert not is_well
        assert [f"NOT SAID by koordebpf {each.by}: {each.says}" in lines for each in expects] == [True, True]

    def test_a_sentence_that_may_not_be_said(self, monkeypatch: pytest.MonkeyPatch) -> None:
        changed = msgspec.structs.replace(load("limit-thrash"), expects=(), never=("watching the node cgroup",))
        is_well, lines = self.play(changed, monkeypatch)
        assert not is_well
        assert [line for line in lines if line.startswith("SAID, and not to be: ") and "watching" in line]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_scenario_leaves_nothing(number: signal.Signals) -> None:
    with started("slow-leak") as process:  # one that takes its time
        assert process.stdout is not None
        for line in process.stdout:
            if "leak begins" in line:
                break
        time.sleep(0.3)
        os.kill(process.pid, number)
        out, _ = process.communicate(timeout=patience(30))
    assert (process.returncode, left_of(process.pid)) == (130, [])
    assert out.endswith("interrupted: the pods and cgroups are removed\n")
