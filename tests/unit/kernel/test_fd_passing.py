"""Values and open files between two processes, and what is left when one of them goes away half-way."""

from __future__ import annotations

import array
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.kernel.bcc import process


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = process.channel()
    with ours, theirs:
        yield ours, theirs


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.parametrize("count", [0, 1, 253, 254, 600], ids=lambda count: f"{count} files")
def test_files_arrive_in_their_order(ends: tuple[socket.socket, socket.socket], tmp_path: Path, count: int) -> None:
    ours, theirs = ends
    sent = [os.open(tmp_path / str(number), os.O_CREAT | os.O_RDWR) for number in range(count)]
    process.send(theirs, {"names": ["events", "ü"], "n": count}, sent)
    names = [os.fstat(fd).st_ino for fd in sent]
    for fd in sent:
        os.close(fd)
    value, fds = process.receive(ours)
    try:
        assert value == {"names": ["events", "ü"], "n": count}
        assert [os.fstat(fd).st_ino for fd in fds] == names
        assert not any(os.get_inheritable(fd) for fd in fds)
    finally:
        for fd in fds:
            os.close(fd)


def test_a_closed_end_is_reported(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    theirs.close()
    with pytest.raises(EOFError):
        process.receive(ours)


def test_an_end_that_closes_half_way_leaves_no_file_open(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    before = open_files()
    theirs.send(json.dumps({"value": {}, "fds": 3}).encode())
    theirs.sendmsg([b"f"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 0]))])
    theirs.close()
    with pytest.raises(EOFError, match="2 of 3 files"):
        process.receive(ours)
    assert open_files() == before - 1


def test_files_that_were_not_taken_are_closed_with_the_channel(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    ours, theirs = process.channel()
    process.send(theirs, {}, [write_end])
    os.close(write_end)
    theirs.close()
    ours.close()
    assert os.read(read_end, 1) == b""  # its last writer is gone
    os.close(read_end)


def test_a_silent_end_is_not_waited_for(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = ends
    ours.settimeout(0.01)
    with pytest.raises(TimeoutError):
        process.receive(ours)
