"""An agent that stands by: it watches, takes over where another one ends, and leaves nothing if it ends itself."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent, left_in
from tests.host.rigs.held_node import HeldNode
from tests.support.followed import Followed
from tests.support.patience import patience

ENFORCE = ("--enforce", "--stand-by")
ACTS = "this one acts now"
IN_A_POD = ("env", "KUBERNETES_SERVICE_HOST=10.0.0.1")


@contextlib.contextmanager
def acting(held: HeldNode, folder: Path, *arguments: object, before: tuple[str, ...] = ()) -> Iterator[LiveAgent]:
    """An agent that holds the node's best-effort pods."""
    at_first = held.quota_file.read_bytes()
    with LiveAgent(folder, *held.arguments(folder), *arguments, *ENFORCE, before=before) as agent:
        until(lambda: held.quota_file.read_bytes() != at_first, lambda: f"a quota, but: {agent.log}")
        yield agent


def waiting(held: HeldNode, folder: Path) -> LiveAgent:
    """An agent that is ready to take over."""
    agent = LiveAgent(folder, *held.arguments(folder), *ENFORCE)
    agent.becomes_ready().said("another agent acts on this node")
    assert agent.metric("koordebpf_dry_run") == 1
    return agent


def attached(agent: LiveAgent) -> set[str]:
    """The BPF links of an agent that belong to its node watch: those of the scheduler are opened by who decides."""
    found = set()
    for file in Path(f"/proc/{agent.process.pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            fields = dict(line.split(":\t", 1) for line in file.read_text().splitlines() if ":\t" in line)
            if "link_type" in fields and "sched" not in fields.get("tp_name", ""):
                found.add(fields["link_id"])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_it_takes_over_and_no_pod_is_released(held: HeldNode, tmp_path: Path, by: signal.Signals) -> None:
    before = held.quota_file.read_bytes()
    with acting(held, tmp_path) as first, waiting(held, tmp_path) as second:
        with Followed(held.quota_file) as quota:
            first.stop(by)
            second.said(ACTS)
            second.said("enforcing by cgroup")
            second.becomes_ready()
            until(lambda: second.metric("koordebpf_be_cpu_cores") > 0, lambda: f"a decision, but: {second.log}")
        assert quota.values
        assert before.decode().strip() not in quota.values
        assert second.metric("koordebpf_dry_run") == 0
        assert not list(tmp_path.glob("run/*/suppression.json"))
        assert second.stop() == 0
    assert held.quota_file.read_bytes() == before
    assert left_in(tmp_path) == []


@pytest.mark.slow
def test_its_bpf_programs_stay_attached_as_it_takes_over(held: HeldNode, tmp_path: Path) -> None:
    with acting(held, tmp_path) as first, waiting(held, tmp_path) as second:
        before = attached(second)
        assert first.stop() == 0
        second.said("enforcing by cgroup")
        second.becomes_ready()
        assert attached(second) >= before > set()


@pytest.mark.slow
def test_what_is_reset_while_no_agent_acts_is_held_before_anything_is_measured(held: HeldNode, tmp_path: Path) -> None:
    before = held.quota_file.read_bytes()
    with acting(held, tmp_path) as first, waiting(held, tmp_path) as second:
        # GIVEN a slice that systemd resets after the first agent has ended
        second.process.send_signal(signal.SIGSTOP)
        assert first.stop() == 0
        held.quota_file.write_bytes(before)
        # WHEN the second one takes over
        second.process.send_signal(signal.SIGCONT)
        # THEN it writes what the first one held, whatever it measures later
        until(lambda: held.quota_file.read_bytes() != before, lambda: f"a quota, but: {second.log}")

        def held_again() -> list[str]:
            changes = [line["change"] for line in second.lines() if line["schema"] == "koordebpf.write/v1"]
            return [each["path"] for each in changes if each["reason"] == "as the agent before this one held it"]

        until(held_again, "the audit's line")
        assert held_again() == [str(held.quota_file)]
        assert second.stop() == 0
    assert held.quota_file.read_bytes() == before
    assert left_in(tmp_path) == []


@pytest.mark.slow
def test_one_that_is_ended_leaves_the_other_at_work(held: HeldNode, tmp_path: Path) -> None:
    before = held.quota_file.read_bytes()
    with acting(held, tmp_path) as first, waiting(held, tmp_path) as second:
        with LiveAgent(tmp_path, *held.arguments(tmp_path), *ENFORCE) as third:
            assert third.process.wait(patience(30)) == 2
            assert f"process {second.process.pid} of " in third.log
            assert third.log.rstrip().endswith("stands by on this node already: end it, or let this agent only watch")
        assert second.stop() == 0
        assert held.quota_file.read_bytes() != before
        assert first.readiness() == (200, [])
        assert first.stop() == 0
        assert "is kept for" not in first.log
    assert held.quota_file.read_bytes() == before
    assert left_in(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2))  # either of them first
def test_where_both_are_ended_at_once_everything_is_restored(held: HeldNode, tmp_path: Path, number: int) -> None:
    before = held.quota_file.read_bytes()
    pause_s = random.Random(number).uniform(-0.3, 0.3)
    print(f"{pause_s * 1000:.0f} ms between the two")
    with acting(held, tmp_path) as first, waiting(held, tmp_path) as second:
        agents = (first, second) if pause_s > 0 else (second, first)
        agents[0].process.send_signal(signal.SIGTERM)
        time.sleep(abs(pause_s))
        agents[1].process.send_signal(signal.SIGTERM)
        assert [each.process.wait(patience(20)) for each in agents] == [0, 0], first.log + second.log
        assert held.quota_file.read_bytes() == before, first.log + second.log
    assert left_in(tmp_path) == []


@pytest.mark.slow
def test_what_was_left_for_a_successor_that_ends_is_restored(held: HeldNode, tmp_path: Path) -> None:
    # GIVEN an agent on standby that gets SIGTERM before it sees that its turn has come
    before = held.quota_file.read_bytes()
    with acting(held, tmp_path) as first, waiting(held, tmp_path) as second:
        second.process.send_signal(signal.SIGSTOP)
        first.stop()
        assert held.quota_file.read_bytes() != before
        second.process.send_signal(signal.SIGTERM)
        second.process.send_signal(signal.SIGCONT)
        assert second.process.wait(patience(20)) == 0
    assert held.quota_file.read_bytes() == before
    assert left_in(tmp_path) == []


@pytest.mark.slow
def test_in_a_container_nothing_is_kept_for_one_that_may_never_come(held: HeldNode, tmp_path: Path) -> None:
    before = held.quota_file.read_bytes()
    config = tmp_path / "config.yaml"
    whole = {"apiVersion": "koordebpf.io/v1alpha1", "kind": "AgentConfiguration", "suppress": {"atExit": "keep"}}
    config.write_text(json.dumps(whole))
    with acting(held, tmp_path, "--config", config, before=IN_A_POD) as agent:
        assert agent.stop() == 0
        assert "is kept for" not in agent.log
    assert held.quota_file.read_bytes() == before
    assert left_in(tmp_path) == []
