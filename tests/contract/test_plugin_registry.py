"""Plugins are found by their sockets: those that come, go, are replaced, lie, hang, or are none."""

from __future__ import annotations

import base64
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from koordebpf.slo.katalyst_access import AccessSettings, Validation
from koordebpf.strategies.katalyst.registry import Change, PluginAccess, PluginRegistry
from tests.contract.apiserver import until
from tests.contract.eviction_plugin import Plugin
from tests.support.patience import patience

INSIDE = "system-memory-pressure-eviction-plugin"


class Watched:
    """A registry and what it has said so far."""

    def __init__(self, folder: Path, access: PluginAccess | None = None) -> None:
        self.folder = folder
        self.registry = PluginRegistry(folder, [INSIDE], lambda: None, access, look_s=0.02)
        self.changes: list[Change] = []

    def says(self, *changes: Change) -> None:
        """Wait until all that it says is this."""

        def are_there() -> bool:
            self.changes += self.registry.poll()
            return len(self.changes) >= len(changes)

        until(are_there, lambda: f"{changes}, but {self.changes} and {self.registry.problems}")
        assert self.changes == list(changes)
        self.changes = []

    def refuses(self, name: str, why: str) -> None:
        path = str(self.folder / name)
        until(lambda: path in self.registry.problems, lambda: f"{name} is refused, but {self.registry.problems}")
        assert why in self.registry.problems[path]
        assert self.registry.poll() == []


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path)
    yield made
    made.registry.close()


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Callable[..., Plugin]]:
    made: list[Plugin] = []

    def make(path: str, name: str = "", answers: Mapping[str, object] | None = None, **info: object) -> Plugin:
        # Whole before its socket has its name, which is looked for a hundred times a second.
        one = Plugin(tmp_path / f".{Path(path).name}", name or Path(path).stem)
        one.info |= info
        for field, value in (answers or {}).items():
            setattr(one, field, value)
        (tmp_path / path).parent.mkdir(exist_ok=True)
        one.socket.rename(tmp_path / path)
        one.socket = tmp_path / path
        made.append(one)
        return one

    yield make
    for each in made:
        each.stop()


def test_one_is_registered_learns_so_and_leaves(watched: Watched, plugin: Callable[..., Plugin]) -> None:
    one = plugin("below/one.sock")
    watched.says(Change("one", one.socket))
    assert one.statuses == [(True, "")]
    one.socket.unlink()
    watched.says(Change("one", None))


def test_one_that_is_replaced_is_registered_again(watched: Watched, plugin: Callable[..., Plugin]) -> None:
    one = plugin("one.sock")
    watched.says(Change("one", one.socket))
    second = plugin("one.sock")
    watched.says(Change("one", None), Change("one", second.socket))


@pytest.mark.parametrize(
    ("info", "why"),
    [
        ({"type": "CSIPlugin"}, "its type 'CSIPlugin'"),
        ({"name": "x" * 101}, "is no name"),
        ({"name": "a\nb"}, "is no name"),
        ({"name": INSIDE}, "is a plugin inside this agent"),
        ({"supported_versions": ["v1", "v2"]}, "it supports v1, v2, not v1alpha1"),
        ({"endpoint": "/nowhere.sock"}, "UNAVAILABLE"),
    ],
)
def test_one_that_does_not_qualify_learns_why(
    watched: Watched, plugin: Callable[..., Plugin], info: dict[str, object], why: str
) -> None:
    one = plugin("one.sock", **info)
    watched.refuses("one.sock", why)
    if "endpoint" not in info:
        ((is_registered, error),) = one.statuses
        assert not is_registered
        assert why in error


@pytest.mark.slow
def test_what_is_no_plugin_or_hangs_keeps_no_other_from_it(
    watched: Watched, plugin: Callable[..., Plugin], tmp_path: Path
) -> None:
    (tmp_path / "file.sock").write_text("no socket")
    (tmp_path / "link.sock").symlink_to(tmp_path / "one.sock")
    os.mkfifo(tmp_path / "fifo.sock")
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / "dead.sock"))
    silent = socket.socket(socket.AF_UNIX)
    silent.bind(str(tmp_path / "silent.sock"))
    silent.listen()
    hung = [plugin(f"hung-{number}.sock") for number in range(3)]
    for each in hung:
        each.hold.clear()
    one = plugin("one.sock")
    try:
        watched.says(Change("one", one.socket))
        until(lambda: "dead.sock" in " ".join(watched.registry.problems), "a socket of no process is a problem")
        until(lambda: "silent.sock" in " ".join(watched.registry.problems), "a socket that says nothing is a problem")
    finally:
        dead.close()
        silent.close()


def test_of_two_with_one_name_the_later_one_is_called(watched: Watched, plugin: Callable[..., Plugin]) -> None:
    first = plugin("a.sock", "same")
    watched.says(Change("same", first.socket))
    second = plugin("b.sock", "same")
    watched.says(Change("same", second.socket))
    first.socket.unlink()
    second.socket.unlink()
    watched.says(Change("same", None))


SECRET = "s3cr3t"
TOKEN = f"Basic {base64.b64encode(f'ops:{SECRET}'.encode()).decode()}"
RULES = f"""
basicAuthConfig: {{userPasswordPairs: [{{username: ops, password: {base64.b64encode(SECRET.encode()).decode()}}}]}}
accessControlConfig: {{accessControlPolicies: [{{username: ops, policyRule: {{resources: [RESOURCE]}}}}]}}
"""


def judged(tmp_path: Path, *, is_strict: bool, resource: str = "eviction_plugin") -> Watched:
    rules = tmp_path / ".auth.yaml"
    rules.write_text(RULES.replace("RESOURCE", resource))
    settings = AccessSettings("Basic", "dynamic_conf", is_strict, str(rules))
    return Watched(tmp_path, PluginAccess(settings))


@pytest.mark.parametrize(
    ("token", "resource", "reason", "user", "why"),
    [
        ("", "eviction_plugin", "authenticate_failed", "unknown", "not of the form Basic"),
        (TOKEN + "x", "eviction_plugin", "authenticate_failed", "unknown", "not of the form Basic"),
        (TOKEN, "http_endpoint", "no_permission", "ops", "has no permission eviction_plugin"),
    ],
)
def test_in_strict_mode_one_that_is_not_valid_is_refused_and_learns_why(
    plugin: Callable[..., Plugin],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    token: str,
    resource: str,
    reason: str,
    user: str,
    why: str,
) -> None:
    watched = judged(tmp_path, is_strict=True, resource=resource)
    try:
        one = plugin("one.sock", answers={"token": token})
        watched.refuses("one.sock", why)
        assert not one.statuses[0][0]
        assert why in one.statuses[0][1]
        assert Validation("one", True, reason, user) in watched.registry.validations  # type: ignore[arg-type]
    finally:
        watched.registry.close()
    assert SECRET not in caplog.text
    assert not token or token not in caplog.text


def test_in_strict_mode_one_without_a_token_is_refused(plugin: Callable[..., Plugin], tmp_path: Path) -> None:
    watched = judged(tmp_path, is_strict=True)
    try:
        plugin("one.sock", answers={"lacks": {"GetToken"}})
        watched.refuses("one.sock", "it gave no token")
        assert Validation("one", True, "get_token_failed", "unknown") in watched.registry.validations
    finally:
        watched.registry.close()


@pytest.mark.parametrize(("token", "reason", "user"), [(TOKEN, "", "ops"), ("", "authenticate_failed", "unknown")])
def test_else_it_is_registered_and_the_outcome_is_counted(
    plugin: Callable[..., Plugin], tmp_path: Path, token: str, reason: str, user: str
) -> None:
    watched = judged(tmp_path, is_strict=False)
    try:
        one = plugin("one.sock", answers={"token": token})
        watched.says(Change("one", one.socket))
        assert watched.registry.validations == {Validation("one", False, reason, user): 1}  # type: ignore[arg-type]
    finally:
        watched.registry.close()


@pytest.mark.parametrize(("file", "words"), [("", "must name a file"), ("large", "at most"), ("none", "readable file")])
def test_rules_that_are_not_there_are_named_and_let_no_plugin_in(tmp_path: Path, file: str, words: str) -> None:
    (tmp_path / "large").write_bytes(bytes((1 << 20) + 1))
    path = str(tmp_path / file) if file else ""
    outcome, why = PluginAccess(AccessSettings("Basic", is_strict=True, file=path)).validate("one", TOKEN)
    assert outcome.is_refused
    assert words in why


def test_a_file_of_rules_that_cannot_be_read_lets_no_plugin_in_and_is_named(
    plugin: Callable[..., Plugin], tmp_path: Path
) -> None:
    watched = judged(tmp_path, is_strict=True)
    (tmp_path / ".auth.yaml").unlink()
    try:
        plugin("one.sock", answers={"token": TOKEN})
        watched.refuses("one.sock", ".auth.yaml")
    finally:
        watched.registry.close()


def test_outcomes_of_more_plugins_than_a_node_has_are_counted_together() -> None:
    access = PluginAccess(AccessSettings())
    for number in range(2000):
        access.validate(f"plugin-{number}", "")
    assert len(access.validations) <= 502
    assert sum(access.validations.values()) == 2000


def test_one_that_answers_garbage_is_refused_and_asked_again(
    watched: Watched, plugin: Callable[..., Plugin], tmp_path: Path
) -> None:
    one = plugin("one.sock", answers={"raw": os.urandom(3 << 20)})
    watched.refuses("one.sock", "")
    one.raw = None
    watched.says(Change("one", one.socket))


def test_a_socket_that_becomes_no_socket_ends_its_plugin(
    watched: Watched, plugin: Callable[..., Plugin], tmp_path: Path
) -> None:
    one = plugin("one.sock")
    watched.says(Change("one", one.socket))
    one.socket.unlink()
    one.socket.write_text("a file")
    watched.says(Change("one", None))


def test_one_that_lost_its_name_has_it_again_once_the_other_is_gone(
    watched: Watched, plugin: Callable[..., Plugin]
) -> None:
    first = plugin("a.sock", "same")
    watched.says(Change("same", first.socket))
    second = plugin("b.sock", "same")
    watched.says(Change("same", second.socket))
    second.socket.unlink()
    watched.says(Change("same", None), Change("same", first.socket))


def test_one_that_lost_its_name_has_it_again_once_no_process_serves_the_other(
    watched: Watched, plugin: Callable[..., Plugin], tmp_path: Path
) -> None:
    first = plugin("a.sock", "same")
    watched.says(Change("same", first.socket))
    killed = Killed(tmp_path, "b.sock", "same")
    try:
        watched.says(Change("same", tmp_path / "b.sock"))
    finally:
        killed.kill()
    assert (tmp_path / "b.sock").is_socket()  # as SIGKILL leaves it
    watched.says(Change("same", None), Change("same", first.socket))
    assert first.statuses == [(True, "")] * 2
    watched.refuses("b.sock", "UNAVAILABLE")


class Killed:
    """A plugin in a process of its own, for SIGKILL."""

    def __init__(self, folder: Path, socket_name: str, name: str) -> None:
        program = (
            "import sys, pathlib; from tests.contract.eviction_plugin import Plugin; folder, at, name = sys.argv[1:];"
            "path = pathlib.Path(folder); one = Plugin(path / ('.' + at), name); one.socket.rename(path / at);"
            "sys.stdin.read()"
        )
        command = [sys.executable, "-c", program, str(folder), socket_name, name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE)

    def kill(self) -> None:
        """End it without a chance to remove its socket."""
        self.process.kill()
        self.process.communicate()


SILENT = 200


@pytest.mark.slow
def test_200_that_never_give_a_token_keep_no_other_waiting(plugin: Callable[..., Plugin], tmp_path: Path) -> None:
    # Each says who it is, and is then silent for as long as Katalyst gives it for its token.
    mute = socket.socket(socket.AF_UNIX)
    mute.bind(str(tmp_path / ".mute"))
    mute.listen(2 * SILENT)
    one = plugin("z.sock")
    hung = plugin("a.sock", endpoint=str(tmp_path / ".mute"))
    for number in range(SILENT):
        (tmp_path / f"a{number}.sock").hardlink_to(hung.socket)
    before_kib = anonymous_kib()
    began_s = time.monotonic()
    registry = PluginRegistry(tmp_path, (), lambda: None)
    changes: list[Change] = []
    try:
        until(lambda: changes.extend(registry.poll()) or changes, "the honest one", 60)
        took_s = time.monotonic() - began_s
        threads = sum(each.name == "plugin-asking" for each in threading.enumerate())
        print(f"registered beside {SILENT} in {took_s:.1f} s; {threads} ask, {anonymous_kib() - before_kib} KiB more")
    finally:
        registry.close()
        mute.close()
    assert changes == [Change("z", one.socket)]
    assert took_s < patience(15)


def anonymous_kib() -> int:
    (line,) = [each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("RssAnon")]
    return int(line.split()[1])
