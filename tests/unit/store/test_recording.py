"""The file of a recording: what was written is read again, what is cut or foreign is reported."""

from __future__ import annotations

import logging
import resource
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from koordebpf.errors import ConfigError, SupportError
from koordebpf.kernel.bpf.ring import look
from koordebpf.store.recording import Recorder, Recording, RecordingHeader, StructLayout, own_header, read_recording
from tests.support.values.ring_image import DISCARD, ring_image

RECORDS = [
    struct.pack("<IIQQ", 1, size, i, i) + bytes([i]) * (size - 24) for i, size in enumerate((80, 88, 29, 176, 80))
]
CGROUPS = {1: "", 77: "kubepods/pod-ä"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "node.rec"


def write(path: Path, header: RecordingHeader | None = None, lost: int | None = 7) -> None:
    with Recorder(path, header or own_header(CGROUPS)) as recorder:
        recorder.add(RECORDS)
        recorder.finish(lost)


def test_what_was_written_comes_back(path: Path) -> None:
    header = own_header(CGROUPS)
    with Recorder(path, header) as recorder:
        recorder.add(RECORDS[:2])
        recorder.add([])
        recorder.add(RECORDS[2:])
        summary = recorder.finish(lost=7)
    recording = read_recording(path)
    assert not recording.is_cut
    assert recording.header == header
    assert list(recording) == RECORDS
    assert recording.summary == summary
    assert (summary.records, summary.bytes, summary.lost) == (len(RECORDS), path.stat().st_size, 7)
    assert path.stat().st_mode & 0o777 == 0o600


def test_losses_that_are_not_counted_are_not_zero(path: Path) -> None:
    write(path, lost=None)
    summary = read_recording(path).summary
    assert summary is not None
    assert summary.lost is None


def test_a_ring_is_written_as_it_lies_and_read_without_what_was_discarded(path: Path) -> None:
    frames = [(DISCARD if i == 2 else 0, record) for i, record in enumerate(RECORDS)]
    memory, producer = ring_image(4096, 8 * 500, frames)
    batch = look(memory, 8 * 500, producer)
    assert batch is not None
    with Recorder(path, own_header({})) as recorder:
        recorder.write(batch)
        summary = recorder.finish(lost=0)
    assert summary.records == len(RECORDS) - 1
    assert list(read_recording(path)) == RECORDS[:2] + RECORDS[3:]


def test_wherever_a_file_is_cut_its_whole_records_come(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Recorder(path, own_header(CGROUPS)) as recorder:
        ends = [recorder.bytes]
        for record in RECORDS:
            recorder.add([record])
            ends.append(recorder.bytes)
        recorder.finish(lost=0)
    whole = path.read_bytes()
    # A record without its padding is whole.
    without_padding = [end - -len(record) % 8 for end, record in zip(ends[1:], RECORDS, strict=True)]
    for length in range(ends[0], len(whole)):
        path.write_bytes(whole[:length])
        caplog.clear()
        recording = read_recording(path)
        expected = RECORDS[: sum(end <= length for end in without_padding)]
        assert recording.is_cut
        assert list(recording) == expected
        assert [each.getMessage() for each in caplog.records] == [
            f"{path} was cut: it gives {len(expected)} whole records"
        ]
        assert list(recording) == []


def test_zeros_that_a_crash_left_are_no_records(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Recorder(path, own_header(CGROUPS)) as recorder:
        recorder.add(RECORDS)
    with path.open("ab") as file:
        file.write(bytes(4096))
    with caplog.at_level(logging.WARNING):
        assert list(read_recording(path)) == RECORDS
    assert "was cut" in caplog.text


def test_cut_within_the_header(path: Path) -> None:
    write(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ConfigError, match="cut within its header"):
        read_recording(path)


@pytest.mark.parametrize("content", [b"", b"koord", b"PERFILE2" + bytes(100)], ids=["empty", "short", "perf.data"])
def test_another_file_is_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="no recording"):
        read_recording(path)


def test_a_missing_file_is_named(path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{path}.*No such file"):
        read_recording(path)


def test_a_newer_version_is_refused(path: Path) -> None:
    write(path)
    data = bytearray(path.read_bytes())
    data[8] = 2
    path.write_bytes(data)
    with pytest.raises(ConfigError, match="version 2, this package reads 1"):
        read_recording(path)


@pytest.mark.parametrize("key", [b'"layoutz"', b'"l\xffyouts"'])
def test_a_broken_header_is_refused(path: Path, key: bytes) -> None:
    write(path)
    path.write_bytes(path.read_bytes().replace(b'"layouts"', key))
    with pytest.raises(ConfigError, match="broken header"):
        read_recording(path)


def changed(**fields: object) -> RecordingHeader:
    return msgspec.structs.replace(own_header(CGROUPS), **fields)


def with_layout(name: str, layout: StructLayout) -> RecordingHeader:
    return changed(layouts={**own_header({}).layouts, name: layout})


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (with_layout("koord_reclaim", StructLayout(72, {"head": 0})), "lays koord_reclaim out as .*size=72"),
        (with_layout("koord_future", StructLayout(72, {"head": 0})), "koord_future .* this package as None"),
        (changed(kinds={"reclaim": 2}), "kind 2 are reclaim, which this package knows as 1"),
        (changed(kinds={"future": 99}), "kind 99 are future, which this package knows as None"),
    ],
    ids=["moved", "unknown", "renumbered", "unknown kind"],
)
def test_another_layout_is_refused_and_the_writer_named(path: Path, header: RecordingHeader, why: str) -> None:
    write(path, msgspec.structs.replace(header, koordebpf="9.9"))
    with pytest.raises(SupportError, match=f"{why}.*koordebpf 9.9, which wrote it"):
        read_recording(path)


def test_a_recording_that_knows_less_is_read(path: Path) -> None:
    layouts = own_header({}).layouts
    write(
        path, changed(kinds={"reclaim": 1}, layouts={name: layouts[name] for name in ("koord_head", "koord_reclaim")})
    )
    assert list(Recording(path)) == RECORDS


def test_a_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"{tmp_path}.*must be a file that can be written: Is a directory"):
        Recorder(tmp_path, own_header({}))


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fills_up_leaves_whole_records(path: Path) -> None:
    recorder = Recorder(path, own_header({}))
    recorder.add(RECORDS[:2])
    with file_size_limit(recorder.bytes + 50), pytest.raises(ConfigError, match="after 2 records: File too large"):
        recorder.add(RECORDS[2:])
    recorder.close()
    assert path.stat().st_size == recorder.bytes
    recording = read_recording(path)
    assert list(recording) == RECORDS[:2]
    assert recording.is_cut
