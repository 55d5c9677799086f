"""What `koordebpf explain --writes` says of changed files."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from koordebpf.act.writer.change import FileChange, WriteResult
from koordebpf.cli.explain import explain
from koordebpf.errors import ConfigError
from koordebpf.report.pages.explain import decode_writes, explained_writes, rounds_of
from koordebpf.store.write_log import AuditedWrite, audited_write

BE = "/sys/fs/cgroup/cpuset/kubepods/besteffort"
WHY = "2.7 CPUs for best-effort pods: 65 % of 8 CPUs − 2 CPUs of pods; CPUs 0-2, from 0-7"


def write(path: str, now_ns: int = 1, result: WriteResult = WriteResult.WRITTEN, **more: object) -> AuditedWrite:
    change = FileChange(f"{path}/cpuset.cpus", "0-7", "0-2", result, WHY, now_ns)
    return audited_write(msgspec.structs.replace(change, **more), "n1", 0.0)


def lines(*writes: AuditedWrite) -> bytes:
    return b"".join(msgspec.json.encode(each) + b"\n" for each in writes)


def test_files_that_change_alike_are_one_line_and_steps_on_the_way_none() -> None:
    made = [write(BE, is_final=False), *(write(f"{BE}/pod{n}") for n in range(3)), write(BE)]
    assert explained_writes(made).splitlines() == [
        "1970-01-01T00:00:00.000Z n1",
        "  2.7 CPUs for best-effort pods: 65 % of 8 CPUs − 2 CPUs of pods; CPUs 0-2, from",
        "    0-7",
        "    cpuset.cpus 0-7 → 0-2: /sys/fs/cgroup/cpuset/kubepods/besteffort/pod0 and 3",
        "      more",
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"result": WriteResult.BUSY, "detail": "EBUSY"}, "0-7 → 0-2 was not written (EBUSY)"),
        (
            {"result": WriteResult.REFUSED, "detail": "EROFS"},
            "0-7 → 0-2 was not written (EROFS: mount the cgroup file system writable)",
        ),
        ({"result": WriteResult.DRY_RUN}, "0-7 → 0-2 (dry run)"),
        ({"is_correction": True}, "0-7 → 0-2, set right"),
        ({"old": ""}, "empty → 0-2"),
    ],
)
def test_what_became_of_it(change: dict[str, object], said: str) -> None:
    assert f"cpuset.cpus {said}: {BE}" in " ".join(explained_writes([write(BE, **change)]).split())


def test_what_was_written_at_once_belongs_together() -> None:
    writes = (write("a"), write("b"), write("a", 2), write("c", 2, reason="another"))
    assert [[line.change.path for line in made] for made in rounds_of(writes)] == [
        ["a/cpuset.cpus", "b/cpuset.cpus"],
        ["a/cpuset.cpus"],
        ["c/cpuset.cpus"],
    ]


def test_lines_of_an_audit_and_an_agents_answer() -> None:
    writes = (write("a"), write("b"))
    other = b'{"schema":"koordebpf.audit/v1"}\n'
    assert decode_writes(other + lines(*writes), "f") == (writes, ())
    assert decode_writes(msgspec.json.encode(writes), "url") == (writes, ())
    torn, problems = decode_writes(lines(*writes)[:-9], "f")
    assert torn == writes[:1]
    assert [str(each).rpartition(":")[0].split(":")[:2] for each in problems] == [["f", "2"]]
    assert [type(each) for each in decode_writes(b"[1]", "url")[1]] == [ConfigError]


def test_the_command(tmp_path: Path) -> None:
    audit = tmp_path / "audit.jsonl"
    audit.write_bytes(lines(write("a"), write("b", 2)))
    reported = CliRunner().invoke(explain, ["--writes", "--last", "1", str(audit)], catch_exceptions=False)
    assert reported.exit_code == 0
    assert "cpuset.cpus 0-7 → 0-2: b" in reported.output
    assert ": a" not in reported.output
    as_json = CliRunner().invoke(explain, ["--writes", "--json", str(audit)], catch_exceptions=False).output
    assert [json.loads(line)["change"]["now_ns"] for line in as_json.splitlines()] == [1, 2]
    both = CliRunner().invoke(explain, ["--writes", "--pod", "web", str(audit)])
    assert both.exit_code == 2
    audit.write_bytes(b"")
    assert "no write in" in CliRunner().invoke(explain, ["--writes", str(audit)]).output
