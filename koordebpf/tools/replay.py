"""Recordings: what `trace` would tell written down unseen, and read as the trace that it was, later and elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from koordebpf.attribution.index import CgroupIndex
from koordebpf.attribution.owner import Owner
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.events.layout import decode
from koordebpf.events.records import CgroupMkdir, CgroupRename, CgroupRmdir, Record
from koordebpf.kube.sources.base import Source
from koordebpf.report.trace.record_line import Seen, TraceFilter
from koordebpf.store.recording import read_recording
from koordebpf.tools.record import record
from koordebpf.tools.trace import Asked, Narrowing, wall_time
from koordebpf.units import format_bytes

_BATCH = 256


def replayed(path: Path, names: Source | None, wanted: TraceFilter, count: int | None) -> Iterator[list[Seen]]:
    """Yield the wanted records of a recording in batches, with the owners that they had then.

    Raises:  ConfigError: it is no recording. SupportError: its records are laid out otherwise. DecodeError: one is not.
    """
    recording = read_recording(path)
    index = CgroupIndex()
    index.replace_all(_rows(recording.header.cgroups))
    if names:
        names.start(lambda: None)
        index.set_pods(names.state().pods)
    batch: list[Seen] = []
    seen = 0
    for raw in recording:
        record = decode(raw)
        owner = _apply(index, record)
        if not wanted.lets_pass(record, owner):
            continue
        batch.append(Seen(record, owner, wall_time(record.ts_ns, recording.header.clock_offset_ns)))
        seen += 1
        if seen == count:
            break
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def record_trace(watch: NodeWatch, path: Path, asked: Asked) -> str:
    """Write what is asked for to `path` until SIGTERM, SIGINT, `count` or `seconds`; return what was written.

    Which cgroups are wanted is decided at the start: new cgroups are not looked at meanwhile.

    Raises:  SupportError: numpy is not installed. ConfigError: the file cannot be written.
    """
    Narrowing(watch, asked)
    done = record(watch, path, count=asked.count, seconds=asked.seconds)
    lost = "losses are not counted here" if done.lost is None else f"{done.lost} lost"
    return f"{done.records} records, {format_bytes(done.bytes)}, in {done.seconds:.1f} s; {lost}"


def _rows(paths: Mapping[int, str]) -> Iterator[tuple[int, int, str]]:
    ids = {path: cgroup_id for cgroup_id, path in paths.items()}
    for cgroup_id, path in paths.items():
        yield cgroup_id, ids.get(path.rpartition("/")[0], 0), path


def _apply(index: CgroupIndex, record: Record) -> Owner | None:
    # The dead are looked up before the index forgets them.
    match record:
        case CgroupMkdir():
            index.born(record)
        case CgroupRmdir():
            owner = index.owner(record.cgroup_id)
            index.died(record)
            return owner
        case CgroupRename():
            index.renamed(record)
    return index.owner(record.cgroup_id)
