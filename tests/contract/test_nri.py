"""The NRI plugin on the wire, against a runtime that also misbehaves."""

from __future__ import annotations

import itertools
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordebpf.errors import DecodeError
from koordebpf.kube.nri.plugin import NriPlugin
from koordebpf.kube.nri.session import MOST_DATA, PLUGIN_CONN, REQUEST, Message, Wire, frames_of
from koordebpf.kube.nri.values import Answer, NriResources
from koordebpf.kube.runtime_settings import NriSettings
from koordebpf.units import NS_PER_MS, NS_PER_S
from tests.contract.apiserver import until
from tests.contract.nri_runtime import NRI, PLUGIN, Answers, Connection, NriRuntimeServer, Refused
from tests.support.patience import patience

POD = {"id": "s", "name": "web", "uid": "u-1", "namespace": "team"}


@pytest.fixture
def path(sockets: Path) -> Path:
    return sockets / "nri.sock"


@pytest.fixture
def runtime(path: Path) -> Iterator[NriRuntimeServer]:
    with NriRuntimeServer(path) as server:
        yield server


def plugin_settings(path: Path, **changes: Any) -> NriSettings:
    return NriSettings(**{"socket": str(path), "backoff_ns": 10 * NS_PER_MS, "backoff_cap_ns": NS_PER_S, **changes})


@pytest.fixture
def opened(path: Path, runtime: NriRuntimeServer) -> Iterator[Callable[..., tuple[NriPlugin, Connection]]]:
    """Opens a plugin that the runtime has synchronized."""
    plugins: list[NriPlugin] = []

    def opening(answers: Answers, **changes: Any) -> tuple[NriPlugin, Connection]:
        plugins.append(NriPlugin(plugin_settings(path, **changes), answers))
        return plugins[-1], runtime.accept().ready()

    yield opening
    for each in plugins:
        each.close()


class TestRegistering:
    def test_it_has_its_name_index_and_events(self, path, runtime):
        settings = plugin_settings(path, name="mine", index="07", events=("CreateContainer", "RunPodSandbox"))
        with NriPlugin(settings, Answers()) as plugin:
            connection = runtime.accept()
            asked = connection.registered()
            assert (asked.plugin_name, asked.plugin_idx) == ("mine", "07")
            assert not plugin.state[0]
            assert connection.call("Configure", runtime_name="containerd", runtime_version="v2").events == 0b1001
            connection.call("Synchronize")
            until(lambda: plugin.state[0], "the plugin")
            assert plugin.state == (True, "registered with containerd v2")

    def test_a_list_in_parts_is_taken_to_its_end(self, runtime, path):
        with NriPlugin(plugin_settings(path), Answers()) as plugin:
            connection = runtime.accept()
            connection.registered()
            connection.call("Configure")
            assert connection.call("Synchronize", more=True).more
            assert not plugin.state[0]
            assert not connection.call("Synchronize", more=False).more
            until(lambda: plugin.state[0], "the plugin")

    def test_a_socket_that_is_not_there_yet_is_waited_for(self, path):
        with NriPlugin(plugin_settings(path), Answers()) as plugin:
            until(lambda: "no runtime listens there" in plugin.state[1], "the plugin")
            with NriRuntimeServer(path) as runtime:
                runtime.accept().ready()
                until(lambda: plugin.state[0], "the plugin")

    def test_a_runtime_that_does_not_configure_it_is_connected_to_once_more(self, path, runtime):
        with NriPlugin(plugin_settings(path, registration_timeout_ns=100 * NS_PER_MS), Answers()) as plugin:
            runtime.accept().registered()
            runtime.accept().ready()  # which fails where the first one is still open
            until(lambda: plugin.state[0], "the plugin")

    def test_it_may_take_its_time_to_synchronize(self, path, runtime):
        with NriPlugin(plugin_settings(path, registration_timeout_ns=100 * NS_PER_MS), Answers()) as plugin:
            connection = runtime.accept()
            connection.registered()
            connection.call("Configure")
            time.sleep(0.3)  # a runtime waits for the pods that are being created
            connection.call("Synchronize")
            until(lambda: plugin.state[0], "the plugin")
            assert len(runtime.connections) == 1

    def test_a_runtime_that_refuses_it_is_asked_again_later(self, path, runtime):
        with NriPlugin(plugin_settings(path), Answers()) as plugin:
            runtime.accept().registered(code=3)
            until(lambda: "refuses the plugin: no" in plugin.state[1], "the plugin")
            runtime.accept().ready()
            until(lambda: plugin.state[0], "the plugin")

    def test_attempts_become_rarer_up_to_the_cap(self, path, runtime):
        settings = plugin_settings(path, backoff_ns=100 * NS_PER_MS, backoff_cap_ns=NS_PER_S)
        with NriPlugin(settings, Answers()):
            at_s = []
            for _ in range(4):
                runtime.accept().trunk.shutdown(socket.SHUT_WR)
                at_s.append(time.monotonic())
            pauses = [later - earlier for earlier, later in itertools.pairwise(at_s)]
            assert pauses == sorted(pauses)
            assert pauses[0] >= 0.09
            assert pauses[2] >= 0.39


def _until_registered(connection: Connection) -> None:
    connection.registered()


def _until_configured(connection: Connection) -> None:
    connection.registered()
    connection.call("Configure")


def _while_configuring(connection: Connection) -> None:
    connection.registered()
    connection.ask("Configure", b"")


def _while_synchronizing(connection: Connection) -> None:
    _until_configured(connection)
    connection.ask("Synchronize", bytes(NRI["SynchronizeRequest"](more=True).SerializeToString()))


def _while_creating(connection: Connection) -> None:
    connection.ready()
    connection.ask("CreateContainer", NRI["ContainerRequest"](pod=NRI["PodSandbox"](**POD)).SerializeToString())


def _within_a_frame(connection: Connection) -> None:
    connection.ready()
    connection.trunk.sendall(struct.pack("!II", PLUGIN, 100) + b"half")


def _within_a_header(connection: Connection) -> None:
    connection.ready()
    connection.trunk.sendall(b"\0\0")


def _with_a_frame_of_a_gigabyte(connection: Connection) -> None:
    connection.ready()
    connection.trunk.sendall(struct.pack("!II", PLUGIN, 1 << 30))


@pytest.mark.parametrize(
    "step",
    [
        lambda _: None,
        _until_registered,
        _while_configuring,
        _until_configured,
        _while_synchronizing,
        Connection.ready,
        _while_creating,
        _within_a_header,
        _within_a_frame,
        _with_a_frame_of_a_gigabyte,
    ],
)
def test_it_connects_once_more_after_a_runtime_that_ended_at_this_step_and_never_twice(step, path, runtime):
    with NriPlugin(plugin_settings(path), Answers()) as plugin:
        for _ in range(3):
            connection = runtime.accept()  # which fails where an earlier connection is open
            step(connection)
            connection.trunk.shutdown(socket.SHUT_WR)
        runtime.accept().ready()
        until(lambda: plugin.state[0], "the plugin")
        assert runtime.is_quiet_for(0.3)


def test_it_ends_in_each_state_at_once(path, runtime):
    for step in (lambda _: None, _until_registered, _until_configured, Connection.ready):
        plugin = NriPlugin(plugin_settings(path), Answers())
        connection = runtime.accept()
        step(connection)
        started_s = time.monotonic()
        plugin.close()
        assert time.monotonic() - started_s < patience(10)
        assert not connection.is_open
    assert not [each for each in threading.enumerate() if each.name == "nri"]


class TestAnswering:
    def test_a_container_is_adjusted(self, opened):
        wanted = NriResources(
            cpu_shares=512, cpu_quota_us=-1, cpuset_cpus="0-1", memory_limit_bytes=1 << 30, oom_score_adj=900
        )
        answers = Answers(Answer(wanted))
        plugin, connection = opened(answers)
        pod = NRI["PodSandbox"](
            **POD,
            labels=[{"key": "koordinator.sh/qosClass", "value": "BE"}],
            annotations=[{"key": "a", "value": "b"}],
            linux={"cgroup_parent": "/kubepods/besteffort/podu-1"},
        )
        resources = {"cpu": {"shares": {"value": 2}, "quota": {"value": 0}, "period": {"value": 100000}}}
        container = NRI["Container"](id="c-1", name="main", linux={"resources": resources})
        linux = connection.call("CreateContainer", pod=pod, container=container).adjust.linux
        assert linux.resources.cpu.shares.value == 512
        assert linux.resources.cpu.quota.value == -1
        assert linux.resources.cpu.cpus == "0-1"
        assert not linux.resources.cpu.HasField("period")
        assert linux.resources.memory.limit.value == 1 << 30
        assert linux.oom_score_adj.value == 900
        ((asked, of),) = answers.asked
        assert asked.labels == {"koordinator.sh/qosClass": "BE"}
        assert asked.annotations == {"a": "b"}
        assert (asked.uid, asked.namespace, asked.cgroup_parent) == ("u-1", "team", "/kubepods/besteffort/podu-1")
        assert (of.id, of.name, of.cpu_shares, of.cpu_quota_us, of.memory_limit_bytes) == ("c-1", "main", 2, 0, None)
        assert plugin.counts.adjusted == 1

    def test_what_is_not_wanted_is_not_sent(self, opened):
        _, connection = opened(Answers(Answer(NriResources(cpu_shares=2))))
        adjust = connection.call("CreateContainer", container=NRI["Container"](id="c")).adjust
        assert adjust.linux.resources.HasField("cpu")
        assert not adjust.linux.resources.HasField("memory")
        assert not adjust.linux.resources.cpu.HasField("quota")
        assert not adjust.linux.HasField("oom_score_adj")

    def test_a_container_that_nothing_is_wanted_of_is_left_alone(self, opened):
        _, connection = opened(Answers())
        assert not connection.call("CreateContainer", container=NRI["Container"](id="c")).HasField("adjust")
        assert not connection.call("UpdateContainer", container=NRI["Container"](id="c")).update

    def test_an_update_keeps_what_the_container_was_given(self, opened):
        _, connection = opened(Answers(Answer(NriResources(cpu_shares=512, memory_limit_bytes=1 << 20))))
        (update,) = connection.call("UpdateContainer", container=NRI["Container"](id="c-1")).update
        assert update.container_id == "c-1"
        assert update.linux.resources.cpu.shares.value == 512
        assert update.linux.resources.memory.limit.value == 1 << 20

    def test_pods_that_start_and_end_are_noted(self, opened):
        answers = Answers()
        _, connection = opened(answers)
        for event in (1, 2, 3, 12, 99):
            connection.call("StateChange", event=event, pod=NRI["PodSandbox"](**POD))
        assert [each.uid for each in answers.started] == ["u-1"]
        assert [each.uid for each in answers.removed] == ["u-1"]

    def test_calls_that_were_not_subscribed_to_change_nothing(self, opened):
        answers = Answers(ValueError("never asked"))
        plugin, connection = opened(answers)
        assert connection.call("StopContainer") == NRI["Empty"]()
        assert connection.call("UpdatePodSandbox") == NRI["Empty"]()
        assert connection.call("Shutdown") == NRI["Empty"]()
        assert (answers.started, answers.removed, answers.asked) == ([], [], [])
        assert (plugin.counts.errors, plugin.counts.adjusted) == (0, 0)

    def test_an_unknown_method_is_refused_and_the_next_call_answered(self, opened):
        _, connection = opened(Answers())
        connection.ask("Explode", b"")
        with pytest.raises(Refused, match="12: there is no method Explode"):
            connection.answer("Shutdown")
        connection.call("Shutdown")

    def test_a_message_that_is_too_large_is_refused_and_the_next_call_answered(self, opened):
        _, connection = opened(Answers())
        sending = threading.Thread(target=connection.ask, args=("CreateContainer", bytes(5 << 20)))
        sending.start()
        with pytest.raises(Refused, match="8: a message of more than 4 MiB"):
            connection.answer("CreateContainer")
        sending.join()
        connection.call("Shutdown")

    @pytest.mark.parametrize("payload", [b"\xff", b"\x0a\x05ab", b"\x0a\x02\x0b\x0b", b"\x12\x03\x32\x01\xff"])
    def test_bytes_that_are_no_message_are_refused_and_the_next_call_answered(self, payload, opened):
        _, connection = opened(Answers())
        connection.ask("CreateContainer", payload)
        with pytest.raises(Refused, match=r"^3: "):
            connection.answer("CreateContainer")
        connection.call("Shutdown")

    def test_a_name_of_control_characters_is_printed_as_text(self, opened):
        plugin, connection = opened(Answers(ValueError("bad")))
        pod = NRI["PodSandbox"](namespace="team", name="a\n\x1b[31mb" * 100)
        connection.call("CreateContainer", pod=pod)
        (line,) = plugin.counts.drain_problems()
        assert "bad" in line
        assert "\n" not in line
        assert "\x1b" not in line
        assert len(line) < 1000


class TestErrors:
    def test_a_fault_of_ours_ends_one_call_and_is_counted(self, opened, monkeypatch):
        plugin, connection = opened(Answers())
        monkeypatch.setattr("koordebpf.kube.nri.session.container_of", lambda _message: {}["missing"])
        with pytest.raises(Refused, match="13: KeyError"):
            connection.call("CreateContainer", pod=NRI["PodSandbox"](**POD))
        assert plugin.counts.drain_problems() == ("CreateContainer: KeyError: 'missing'",)
        connection.call("Shutdown")

    def test_a_container_that_cannot_be_judged_is_left_as_the_kubelet_asked_for(self, opened):
        plugin, connection = opened(Answers(ValueError("no such thing")))
        for _ in range(3):
            answer = connection.call("CreateContainer", pod=NRI["PodSandbox"](**POD))
            assert not answer.HasField("adjust")
        assert plugin.counts.errors == 3
        assert plugin.counts.drain_problems() == ("pod team/web: no such thing",)
        assert plugin.counts.drain_problems() == ()

    def test_with_failure_policy_fail_it_is_not_created_and_others_are(self, opened):
        answers = Answers(ValueError("no such thing"))
        _, connection = opened(answers, failure_policy="fail")
        with pytest.raises(Refused, match="2: pod team/web: no such thing"):
            connection.call("CreateContainer", pod=NRI["PodSandbox"](**POD))
        answers.answer = Answer()
        connection.call("CreateContainer", pod=NRI["PodSandbox"](**POD))

    def test_a_part_that_cannot_be_read_leaves_the_other_parts(self, opened):
        answers = Answers(Answer(NriResources(cpu_shares=7), problems=("annotation x: must be a number",)))
        plugin, connection = opened(answers)
        adjust = connection.call("CreateContainer", pod=NRI["PodSandbox"](**POD)).adjust
        assert adjust.linux.resources.cpu.shares.value == 7
        assert plugin.counts.drain_problems() == ("annotation x: must be a number",)

    def test_a_part_that_cannot_be_read_is_an_error_with_failure_policy_fail(self, opened):
        answers = Answers(Answer(NriResources(cpu_shares=7), problems=("annotation x: must be a number",)))
        _, connection = opened(answers, failure_policy="fail")
        with pytest.raises(Refused, match="annotation x: must be a number"):
            connection.call("CreateContainer", pod=NRI["PodSandbox"](**POD))


def test_calls_are_counted_by_what_became_of_them(opened):
    plugin, connection = opened(Answers(ValueError("no")), failure_policy="fail")
    connection.call("StateChange", event=1, pod=NRI["PodSandbox"](**POD))
    with pytest.raises(Refused):
        connection.call("CreateContainer", pod=NRI["PodSandbox"](**POD))
    until(lambda: len(plugin.counts.calls) == 4, "the plugin")
    counted = {key: sum(calls.buckets) for key, calls in plugin.counts.calls.items()}
    assert counted == {
        ("Configure", True): 1,
        ("Synchronize", True): 1,
        ("StateChange", True): 1,
        ("CreateContainer", False): 1,
    }
    assert plugin.counts.registrations == 1


class TestWire:
    @given(st.lists(st.binary(max_size=9000), max_size=4), st.integers(1, 5000))
    @settings(max_examples=50)
    def test_messages_survive_any_cut(self, bodies: list[bytes], cut: int) -> None:
        sent = b"".join(frames_of(PLUGIN_CONN, n, REQUEST, body) for n, body in enumerate(bodies))
        wire = Wire()
        found = [each for at in range(0, len(sent), cut) for each in wire.feed(sent[at : at + cut])]
        assert found == [Message(PLUGIN_CONN, n, REQUEST, body) for n, body in enumerate(bodies)]

    def test_frames_fit_into_the_receivers_buffer(self):
        data = frames_of(PLUGIN_CONN, 1, REQUEST, bytes(100_000))
        sizes = []
        while data:
            size = struct.unpack_from("!I", data, 4)[0]
            sizes.append(size)
            data = data[8 + size :]
        assert max(sizes) == 4096
        assert sum(sizes) == 100_010

    def test_a_message_above_the_limit_is_not_made(self):
        with pytest.raises(ValueError, match="more than"):
            frames_of(PLUGIN_CONN, 1, REQUEST, bytes(MOST_DATA + 1))

    def test_frames_of_unknown_connections_are_skipped(self):
        wire = Wire()
        sent = frames_of(7, 1, REQUEST, b"x") + frames_of(PLUGIN_CONN, 1, REQUEST, b"y")
        assert list(wire.feed(sent)) == [Message(PLUGIN_CONN, 1, REQUEST, b"y")]

    @given(st.binary(max_size=200))
    def test_any_bytes_are_messages_or_refused(self, data: bytes) -> None:
        try:
            for message in Wire().feed(data):
                assert message.conn in (1, 2)
        except DecodeError:
            return
