"""Plugins are found by their sockets: those that come, go, are replaced, lie, hang, or are none."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koordebpf.collect.plugins.registry import Change, PluginRegistry
from tests.contract.apiserver import until
from tests.contract.eviction_plugin import Plugin

INSIDE = "system-memory-pressure-eviction-plugin"


class Watched:
    """A registry and what it has said so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registry = PluginRegistry(folder, [INSIDE], lambda: None)
        self.changes: list[Change] = []

    def says(self, *changes: Change) -> None:
        """Wait until all that it says is this."""

        def are_there() -> bool:
            self.changes += self.registry.take()
            return len(self.changes) >= len(changes)

        until(are_there, lambda: f"{changes}, but {self.changes} and {self.registry.problems}")
        assert self.changes == list(changes)
        self.changes = []

    def refuses(self, name: str, why: str) -> None:
        path = str(self.folder / name)
        until(lambda: path in self.registry.problems, lambda: f"{name} is refused, but {self.registry.problems}")
        assert why in self.registry.problems[path]
        assert self.registry.take() == []


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path)
    yield made
    made.registry.close()


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Callable[..., Plugin]]:
    made: list[Plugin] = []

    def make(path: str, name: str = "", **info: object) -> Plugin:
        # Whole before its socket has its name.
        one = Plugin(tmp_path / f".{Path(path).name}", name or Path(path).stem)
        one.info |= info
        (tmp_path / path).parent.mkdir(exist_ok=True)
        one.socket.rename(tmp_path / path)
        one.socket = tmp_path / path
        made.append(one)
        return one

    yield make
    for each in made:
        each.stop()


@pytest.mark.slow
def test_one_is_registered_learns_so_and_leaves(watched: Watched, plugin: Callable[..., Plugin]) -> None:
    one = plugin("below/one.sock")
    watched.says(Change("one", one.socket))
    assert one.statuses == [(True, "")]
    one.socket.unlink()
    watched.says(Change("one", None))


@pytest.mark.slow
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
        problems = watched.registry.problems
        assert "dead.sock" in " ".join(problems)
        until(lambda: "silent.sock" in " ".join(watched.registry.problems), "a socket that says nothing is a problem")
    finally:
        dead.close()
        silent.close()


@pytest.mark.slow
def test_of_two_with_one_name_the_later_one_is_called(watched: Watched, plugin: Callable[..., Plugin]) -> None:
    first = plugin("a.sock", "same")
    watched.says(Change("same", first.socket))
    second = plugin("b.sock", "same")
    watched.says(Change("same", second.socket))
    first.socket.unlink()
    second.socket.unlink()
    watched.says(Change("same", None))
