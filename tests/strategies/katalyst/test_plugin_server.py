"""What `koordebpf plugin serve` answers from a node that it measures, and when it ends because that fails."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from koordebpf.collect.history import NodeHistory
from koordebpf.configuration.settings import AgentConfig
from koordebpf.errors import KernelFileError
from koordebpf.kube.clients.protobuf import decode, encode
from koordebpf.kube.plugins.connection import CallFailed
from koordebpf.kube.plugins.given_source import GivenPods
from koordebpf.kube.plugins.messages import (
    PLUGIN_MESSAGES,
    PLUGIN_SERVICE,
    REGISTRATION_MESSAGES,
    REGISTRATION_SERVICE,
)
from koordebpf.strategies.katalyst.plugins.memory import SystemMemorySettings
from koordebpf.strategies.katalyst.serve import MemoryPlugin, ServedNode, ServeOptions, serve_until_stopped
from koordebpf.strategies.katalyst.served import STALL_SCOPE, ServedSettings
from koordebpf.units import NS_PER_MS, NS_PER_S
from tests.support.played_signals import StalledNode
from tests.support.plugin_pods import plugin_pod

NAME = "mine"
SHORT = SystemMemorySettings(free_minimum_bytes=1 << 60)  # more than any machine has: it is always short
pytestmark = pytest.mark.usefixtures("logged")


class Rig:
    """A plugin of a machine with the pods web and batch, of which batch holds memory and is a reclaimed one."""

    def __init__(self, root: Path, system: SystemMemorySettings | None = None, token: Path | None = None) -> None:
        self.tree, self.given = StalledNode(root, 2), GivenPods()
        self.tree.watch.source = self.given
        self.node = ServedNode(AgentConfig(), self.tree.watch)
        settings = ServedSettings(system=system or SystemMemorySettings(is_on=False))
        self.plugin = MemoryPlugin(ServeOptions(NAME, root, token), settings, self.node, self.given)
        self.pods = {"web": plugin_pod("web", "shared_cores"), "batch": plugin_pod("batch", "reclaimed_cores")}

    def ask(self, method: str, **fields: Any) -> bytes:
        return self.plugin.methods()[f"{PLUGIN_SERVICE}/{method}"](encode(PLUGIN_MESSAGES, f"{method}Request", fields))

    def registered(self, **fields: Any) -> bytes:
        notify = self.plugin.methods()[f"{REGISTRATION_SERVICE}/NotifyRegistrationStatus"]
        return notify(encode(REGISTRATION_MESSAGES, "RegistrationStatus", fields))

    def top(self, *uids: str, scope: str = "SystemMemory", top_n: int = 0) -> list[bytes]:
        pods = [self.pods[uid] for uid in uids]
        raw = self.ask("GetTopEvictionPods", active_pods=pods, eviction_scope=scope, topN=top_n)
        return list(decode(PLUGIN_MESSAGES, "GetTopEvictionPodsResponse", raw)["target_pods"])

    def close(self) -> None:
        self.node.close()
        self.tree.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with contextlib.closing(Rig(tmp_path)) as made:
        yield made


@pytest.fixture
def short(tmp_path: Path) -> Iterator[Rig]:
    with contextlib.closing(Rig(tmp_path, SHORT)) as made:
        yield made


def test_it_says_its_name_and_logs_what_the_agent_says_of_it(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    raw = rig.plugin.methods()[f"{REGISTRATION_SERVICE}/GetInfo"](b"")
    assert decode(REGISTRATION_MESSAGES, "PluginInfo", raw)["name"] == NAME
    with caplog.at_level(logging.INFO, "koordebpf"):
        assert rig.registered(plugin_registered=True) == b""
        assert rig.registered(error="no\x1b" + "x" * 600) == b""
    first, second = caplog.records
    assert (first.levelname, first.getMessage()) == ("INFO", "the agent has registered mine")
    assert second.levelname == "WARNING" and second.getMessage().startswith("the agent did not register mine: no")
    assert "\x1b" not in second.getMessage() and second.getMessage().count("x") in range(490, 500)


def test_its_token_is_read_each_time_and_its_absence_is_no_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    with contextlib.closing(Rig(tmp_path, token=token)) as rig:
        asked = rig.plugin.methods()[f"{PLUGIN_SERVICE}/GetToken"]
        for text in ("one", "two"):
            token.write_text(text + "\n")
            assert decode(PLUGIN_MESSAGES, "GetTokenResponse", asked(b""))["token"] == text
        token.unlink()
        with pytest.raises(CallFailed, match="must be a readable file"):
            asked(b"")


def test_it_evicts_no_pod_by_itself_and_knows_those_that_it_was_asked_about(rig: Rig) -> None:
    assert rig.ask("GetEvictPods", active_pods=list(rig.pods.values())) == b""
    assert {each.uid for each in rig.given.state().pods} == {"web", "batch"}


def test_where_nothing_is_short_no_threshold_is_met_and_no_pod_is_chosen(rig: Rig) -> None:
    met = rig.plugin.methods()[f"{PLUGIN_SERVICE}/ThresholdMet"]
    assert met(encode(PLUGIN_MESSAGES, "GetThresholdMetRequest", {"active_pods": list(rig.pods.values())})) == b""
    assert rig.top("web", "batch") == rig.top("web", "batch", scope=STALL_SCOPE) == []


def test_of_a_short_machine_reclaimed_pods_are_chosen_of_those_that_are_asked_about(
    short: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    met = short.plugin.methods()[f"{PLUGIN_SERVICE}/ThresholdMet"]
    raw = met(encode(PLUGIN_MESSAGES, "GetThresholdMetRequest", {"active_pods": [short.pods["web"]]}))
    assert decode(PLUGIN_MESSAGES, "ThresholdMetResponse", raw)["eviction_scope"] == "SystemMemory"
    assert {each.uid for each in short.given.state().pods} == {"web"}
    with caplog.at_level(logging.INFO, "koordebpf"):
        assert short.top("web", "batch", top_n=1) == [short.pods["batch"]]  # one that was not named before is taken in
    assert {each.uid for each in short.given.state().pods} == {"web", "batch"}
    assert [each.getMessage() for each in caplog.records] == ["scope SystemMemory: chosen of 2 pods: team/batch"]


def test_what_is_not_measured_is_said_once_and_again_after_it_was(
    short: Rig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    met = short.plugin.methods()[f"{PLUGIN_SERVICE}/ThresholdMet"]
    place = "koordebpf.strategies.katalyst.measure._SCALE_FACTOR"

    def warnings(*, measured: bool, times: int = 1) -> int:
        caplog.clear()
        with monkeypatch.context() as patch:
            if not measured:
                patch.setattr(place, Path("/nowhere"))
            for _ in range(times):
                short.node.measure(time.monotonic_ns())
                met(b"")
        return sum("memory of the machine is not judged" in each.getMessage() for each in caplog.records)

    assert [warnings(measured=False, times=3), warnings(measured=True), warnings(measured=False)] == [1, 0, 1]


def test_a_node_that_cannot_be_measured_is_an_answer_that_is_unavailable(rig: Rig) -> None:
    def fail() -> bytes:
        raise KernelFileError("memory.stat", "", "must have lines")

    rig.tree.signals.totals = fail  # type: ignore[method-assign]
    rig.tree.signals.stalls = fail  # type: ignore[assignment,method-assign]
    with pytest.raises(CallFailed, match="the node was not measured"):
        rig.top("web")


def test_calls_within_a_tenth_of_a_second_see_the_same_node_and_new_pods_or_a_new_window_another(rig: Rig) -> None:
    first = rig.node.seen(time.monotonic_ns())
    assert rig.node.seen(first.now_ns + 100 * NS_PER_MS) is first
    second = rig.node.seen(first.now_ns + 101 * NS_PER_MS)
    assert second is not first and second.now_ns > first.now_ns
    rig.given.replace([rig.pods["web"]])
    third = rig.node.seen(second.now_ns)
    assert third is not second and [each.pod.uid for each in third.active] == ["web"]
    rig.given.replace([rig.pods["web"]])  # no news
    assert rig.node.seen(second.now_ns) is third
    rig.node.restart_stall_window()
    assert rig.node.seen(second.now_ns) is not third


def test_a_reclaimed_pod_counts_as_best_effort_unless_it_says_what_it_is(rig: Rig) -> None:
    labelled = plugin_pod("web", "reclaimed_cores", labels=[{"key": "koordinator.sh/qosClass", "value": "LS"}])
    rig.given.replace([labelled, rig.pods["batch"], plugin_pod("other", "shared_cores")])
    seen = rig.node.seen(time.monotonic_ns())
    assert {each.uid: each.koord_qos for each in seen.view.pods} == {"web": "LS", "batch": "BE", "other": ""}


def test_a_pod_that_cannot_be_read_is_said_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    for pods in ([b"\xff"], [b"\xff", rig.pods["web"]], [rig.pods["web"]]):
        rig.given.replace(pods)
        rig.node.measure(time.monotonic_ns())
    assert len([each for each in caplog.records if "cannot be read" in each.getMessage()]) == 1


class Round:
    """A loop, a node and a server of which each turn is played: the loop wakes at once, `turns` times."""

    def __init__(self, turns: int, late_s: float = 1e9, failures: tuple[BaseException | None, ...] = ()) -> None:
        self.turns, self.late_s, self.failures = turns, late_s, list(failures)
        self.waits: list[int] = []
        self.measures = 0

    @property
    def stopping(self) -> bool:
        return self.turns == 0

    def wait(self, until_ns: int) -> None:
        self.turns -= 1
        self.waits.append(until_ns)

    def run_due(self, now_s: float) -> float:
        return self.late_s

    def measure(self, now_ns: int) -> None:
        self.measures += 1
        if self.failures and (error := self.failures.pop(0)) is not None:
            raise error

    def serve(self) -> None:
        serve_until_stopped(self, self, self)  # type: ignore[arg-type]


def test_it_measures_when_a_second_is_over_and_wakes_earlier_for_a_client_that_is_late() -> None:
    begin_ns = time.monotonic_ns()
    early = Round(3, late_s=1.5)
    early.serve()
    assert (early.measures, early.waits) == (0, [1_500_000_000] * 3)
    calm = Round(1)
    calm.serve()
    assert begin_ns + NS_PER_S <= calm.waits[0] <= time.monotonic_ns() + NS_PER_S


def test_no_measurement_comes_after_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeHistory, "period_ns", 0)
    played = Round(3)
    played.serve()
    assert played.measures == 2


@pytest.mark.parametrize("error", [KernelFileError("x", "", "y"), ValueError("boom")])
def test_nine_failures_in_a_row_are_logged_and_the_tenth_ends_it(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(NodeHistory, "period_ns", 0)
    Round(20, failures=(*[error] * 9, None, *[error] * 9)).serve()
    assert len(caplog.records) == 18
    assert all((each.exc_info is None) is isinstance(error, KernelFileError) for each in caplog.records)
    with pytest.raises(type(error)):
        Round(20, failures=(*[error] * 10,)).serve()
