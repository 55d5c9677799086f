"""A recording as one stream, and back."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from koordebpf.errors import ConfigError, KubeError
from koordebpf.tools.recorder.pack import MOST_SENT_BYTES, Incoming, packed, unpack

SHARD = "day-1700000000-0011aabb-1.rounds"


def recording(folder: Path) -> Path:
    (folder / "machine").mkdir(parents=True)
    (folder / "machine" / SHARD).write_bytes(b"rounds" * 100_000)
    (folder / "machine" / SHARD.replace("rounds", "index")).write_bytes(b"index")
    return folder


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> io.BytesIO:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for entry, content in members:
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    made.seek(0)
    return made


def test_what_is_sent_arrives(tmp_path: Path) -> None:
    sent = b"".join(packed(recording(tmp_path / "node")))
    assert unpack(io.BytesIO(sent), tmp_path / "here") == 600_005
    for path in (tmp_path / "node/machine").iterdir():
        assert (tmp_path / "here/machine" / path.name).read_bytes() == path.read_bytes()


def test_nothing_else_is_sent(tmp_path: Path) -> None:
    folder = recording(tmp_path / "node")
    (folder / "machine/secret").write_bytes(b"s")
    (folder / "machine/link.rounds").symlink_to("/etc/passwd")
    os.mkfifo(folder / "machine/pipe.rounds")  # not waited for either
    sent = io.BytesIO(b"".join(packed(folder)))
    with tarfile.open(fileobj=sent) as tar:
        assert all(each.mode == 0o600 for each in tar.getmembers())
        assert sorted(tar.getnames()) == sorted(f"machine/{name}" for name in (SHARD, SHARD[:-6] + "index"))


def test_a_shard_that_is_written_to_is_as_long_as_it_was(tmp_path: Path) -> None:
    folder = recording(tmp_path / "node")
    chunks = packed(folder)
    first = next(chunks)
    with (folder / "machine" / SHARD).open("ab") as file:
        file.write(b"more")
    assert unpack(io.BytesIO(first + b"".join(chunks)), tmp_path / "here") >= 600_005


def test_a_folder_without_a_recording(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no recording"):
        list(packed(tmp_path))


def link(name: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, "/etc"
    return entry


def test_a_node_writes_nowhere_else(tmp_path: Path) -> None:
    sent = archive(
        (tarfile.TarInfo(f"../out/{SHARD}"), b"x"),
        (tarfile.TarInfo("machine/program.sh"), b"x"),
        (link("machine/sub.rounds"), b""),
        (tarfile.TarInfo(f"/abs/{SHARD}"), b"abc"),
    )
    assert unpack(sent, tmp_path / "here") == 3
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()] == [
        f"here/abs/{SHARD}"
    ]


@pytest.mark.parametrize("raw", [b"", b"nonsense" * 100])
def test_what_is_no_archive(tmp_path: Path, raw: bytes) -> None:
    with pytest.raises(ConfigError, match="no whole recording"):
        unpack(io.BytesIO(raw), tmp_path / "here")


def test_one_that_is_cut(tmp_path: Path) -> None:
    sent = b"".join(packed(recording(tmp_path / "node")))
    with pytest.raises(ConfigError, match="no whole recording"):
        unpack(io.BytesIO(sent[:300_000]), tmp_path / "here")


def test_the_same_file_twice(tmp_path: Path) -> None:
    sent = archive((tarfile.TarInfo(SHARD), b"a"), (tarfile.TarInfo(SHARD), b"b"))
    with pytest.raises(ConfigError, match="no whole recording"):
        unpack(sent, tmp_path / "here")


def test_a_folder_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be a new folder"):
        unpack(io.BytesIO(), tmp_path)


@pytest.mark.parametrize(
    ("size", "said"), [(4 << 30, "no whole recording"), ((4 << 30) + 1, "more than 4 GiB were sent")]
)
def test_more_than_4_gib_are_refused_before_they_are_written(size: int, said: str, tmp_path: Path) -> None:
    entry = tarfile.TarInfo(SHARD)
    entry.size = size
    with pytest.raises(ConfigError, match=said):
        unpack(io.BytesIO(entry.tobuf()), tmp_path / "here")


@pytest.mark.parametrize("others", [9_999, 10_000])
def test_more_than_10_000_files_are_refused_also_where_they_are_none_of_a_recording(
    others: int, tmp_path: Path
) -> None:
    sent = io.BytesIO(tarfile.TarInfo("x").tobuf() * others + tarfile.TarInfo(SHARD).tobuf() + bytes(1024))
    if others < 10_000:
        assert unpack(sent, tmp_path / "here") == 0
    else:
        with pytest.raises(ConfigError, match="10001 files"):
            unpack(sent, tmp_path / "here")


def test_what_is_sent_is_counted_before_it_is_written() -> None:
    file = io.BytesIO()
    incoming = Incoming(file, 10, "node-1")
    incoming.write(b"12345")
    incoming.write(b"67890")
    for _ in range(2):
        with pytest.raises(KubeError, match="node-1: it sent more than 10 B"):
            incoming.write(b"x")
    assert file.getvalue() == b"1234567890"


def test_as_much_may_be_sent_as_may_be_unpacked(tmp_path: Path) -> None:
    sizes = MOST_SENT_BYTES - (4 << 30)
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for number in range(10_000):
            tar.addfile(tarfile.TarInfo(f"{number}.rounds"), io.BytesIO())
    assert len(made.getvalue()) + 10_000 * (tarfile.BLOCKSIZE - 1) <= sizes
