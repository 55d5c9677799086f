"""record's files by the commands that read them: replay, plan, explain, recording."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from jsonschema import Draft202012Validator
from msgspec.structs import replace

from koordebpf.attribution.owner import Owner, OwnerKind
from koordebpf.cli import _group
from koordebpf.cli.schemas import object_schema
from koordebpf.decision.decide_tick import decided_again, encode_decision
from koordebpf.errors import ConfigError
from koordebpf.events.records import OomKill
from koordebpf.kube.cache.objects import Container, ResourceRequirements
from koordebpf.state.outcome import Outcome
from koordebpf.state.outcome import Result as Fate
from koordebpf.store.frames import RecordedTick
from koordebpf.store.recorder.magic import is_recording_path
from koordebpf.store.recorder.read import Recording
from koordebpf.store.recorder.ring import Run
from koordebpf.store.recorder.rounds import RoundEncoder
from koordebpf.store.recorder.stores import FileStore
from koordebpf.store.recorder.values import RecordedEvent, recorded
from koordebpf.store.sink import OomKilled
from koordebpf.tools.recorder.record import record_rounds
from koordebpf.tools.recorder.rounds import parse_time
from koordebpf.units import MIB, NS_PER_S
from tests.support.values.builders import NOW_NS
from tests.support.values.rounds import encoded, round_at, tick_at, wall_ns

NAMES = (b"job-0", b"job-1", b"spark", b"uid-web", b"node-1", b"uid-spark-job-0", b'"pool"')
DECIDED = (5, 9)


def run(*arguments: object, exit_code: int = 0) -> Result:
    result = CliRunner().invoke(_group, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result


def events_of(second: float) -> list[RecordedEvent]:
    now_ns, wall_s = NOW_NS + int(second * NS_PER_S), wall_ns(second) / NS_PER_S
    outcome = Outcome("uid-spark-job-0", "spark", "job-0", "api", Fate.DONE, "evicted", now_ns + 5, sent_ns=now_ns + 9)
    plain = msgspec.to_builtins(outcome)
    change = {
        "path": "/sys/fs/cgroup/kubepods/x/cpu.max",
        "old": "max",
        "new": "1",
        "result": "written",
        "reason": "why",
        "now_ns": now_ns,
    }
    entry = {"uid": outcome.uid, "since_ns": now_ns, "credit_bytes": 1}
    return [
        RecordedEvent(
            "PlanDecided", wall_s, {"outcomes": [], "crossed_ns": 1, "decided_ns": now_ns + 5, "wall_s": wall_s}
        ),
        RecordedEvent("OutcomeArrived", wall_s, {"outcome": plain, "now_ns": now_ns + 20}),
        RecordedEvent("FileChanged", wall_s, {"change": change, "wall_s": wall_s}),
        RecordedEvent("MemoryReleased", wall_s, {"entry": entry, "now_ns": now_ns + 30_000_000}),
    ]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "node.rounds"
    store, encoder = FileStore(made, Run("0123abcd", "node-1"), 8 * MIB), RoundEncoder()
    for second in range(12):
        is_short = second in DECIDED
        store.add(
            encoded(second, encoder, used_mib=900 if is_short else 500),
            b"[[1,2,3,null,null,null]]",
            events_of(second) if is_short else [],
        )
    store.close()
    return made


def test_replay_decides_each_round_as_it_was(path: Path) -> None:
    lines = run("replay", path).output.splitlines()
    assert [line.partition(":")[0] for line in lines[:2]] == ["2027-01-15T08", "2027-01-15T08"]
    assert "round 6: evicting spark/job-0" in lines[0]
    assert lines[2].startswith("12 rounds from 2027-01-15T08:00:00.000Z to 2027-01-15T08:00:11.000Z, 2 of which")
    assert lines[2].endswith("each is decided as it was")


def test_replay_says_which_round_differs_and_fails(tmp_path: Path) -> None:
    made = tmp_path / "false.rounds"
    store = FileStore(made, Run("0123abcd", "node-1"), MIB)
    tick, decision = round_at(3, used_mib=900)
    for at, was in enumerate((decision, msgspec.structs.replace(decision, guards=(), carried=None))):
        store.add(RoundEncoder().encode(tick, was, wall_ns(at)), b"", [])
    store.close()
    result = run("replay", made, exit_code=1)
    assert "DIFFERS from what was recorded" in result.output
    assert "1 decided otherwise than they were" in result.output


def test_replay_under_other_settings_names_what_changes(path: Path) -> None:
    output = run("replay", path, "--set", "memoryEvictThresholdPercent=95").output
    assert "victims: none; before: spark/job-0" in output
    assert "2 decided otherwise under these settings" in output
    assert "0 decided otherwise" in run("replay", path, "--set", "memoryEvictThresholdPercent=85").output


def test_replay_under_an_agents_configuration(path: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: koordebpf.io/v1alpha1\nkind: AgentConfiguration\nfeatureGates: {BEMemoryEvict: false}\n"
    )
    from koordebpf.configuration.file import API_VERSION

    config.write_text(config.read_text().replace("koordebpf.io/v1alpha1", API_VERSION))
    assert "2 decided otherwise" in run("replay", path, "--config", config).output
    assert "2 decided otherwise" in run("replay", path, "--feature-gates", "BEMemoryEvict=false").output


def test_replay_of_a_part_by_time(path: Path) -> None:
    *lines, totals = run(
        "replay", path, "--json", "--since", "2027-01-15T08:00:05Z", "--until", wall_ns(8) / NS_PER_S
    ).output.splitlines()
    assert json.loads(totals) == {
        "schema": "koordebpf.replay/v1",
        "rounds": 4,
        "decisions": 1,
        "differing": 0,
        "first": "2027-01-15T08:00:05.000Z",
        "last": "2027-01-15T08:00:08.000Z",
    }
    assert json.loads(lines[0])["victims"] == ["spark/job-0"]
    assert run("replay", path, "--since", "2027-01-15T09:00:00Z").output == "no round\n"


def test_replay_at_a_time_shows_the_whole_plan(path: Path) -> None:
    output = run("replay", path, "--at", "2027-01-15T08:00:05.9Z").output
    assert output.startswith("2027-01-15T08:00:05.000Z\n\nevicting spark/job-0")
    changed = run("replay", path, "--at", "2027-01-15T08:00:05Z", "--set", "memoryEvictThresholdPercent=95").output
    assert "memoryEvictThresholdPercent" in changed and "spark/job-0" in changed
    with pytest.raises(ConfigError, match=r"must be 2027-01-15T08:00:00\.000Z or later"):
        run("replay", path, "--at", "2020-01-01T00:00:00Z")
    with pytest.raises(ConfigError, match="must be RFC 3339"):
        run("replay", path, "--at", "yesterday")


def test_replay_at_a_time_as_json_is_one_object_that_its_schema_describes(path: Path) -> None:
    schema = Draft202012Validator(object_schema("replayed-plan"))
    whole = json.loads(run("replay", path, "--at", "2027-01-15T08:00:05.9Z", "--json").output)
    schema.validate(whole)
    assert (whole["schema"], whole["time"]) == ("koordebpf.replayed-plan/v2", "2027-01-15T08:00:05.000Z")
    assert [each["candidate"]["name"] for each in whole["plan"]["features"][0]["victims"]] == ["job-0"]
    assert whole["diff"] is None
    of_plan = json.loads(run("plan", path, "--at", "2027-01-15T08:00:05.9Z", "--json").output)
    assert {"schema": "koordebpf.plan/v2", **whole["plan"]} == of_plan
    other = ("--set", "memoryEvictThresholdPercent=95")
    changed = json.loads(run("replay", path, "--at", "2027-01-15T08:00:05Z", *other, "--json").output)
    schema.validate(changed)
    assert changed["diff"]["schema"] == "koordebpf.plan-diff/v2"
    assert [each["candidate"]["name"] for each in changed["diff"]["lost"]] == ["job-0"]


def test_plan_decides_one_of_its_decisions(path: Path) -> None:
    assert "900 MiB  90 %" in run("plan", path, "--decision", 1).output
    assert run("plan", path).output == run("plan", path, "--decision", 2).output
    assert run("plan", path).output == run("plan", path, "--decision", -1).output
    assert "no action" in run("plan", path, "--at", "2027-01-15T08:00:07Z").output
    for number in (0, 3, -3):
        with pytest.raises(ConfigError, match="must be 1 to 2"):
            run("plan", path, "--decision", number)
    with pytest.raises(ConfigError, match="excludes --decision"):
        run("plan", path, "--decision", 1, "--at", "2027-01-15T08:00:07Z")


def test_plan_of_a_recording_without_a_decision_is_its_last_round(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "x", Run("0123abcd", "n"), MIB)
    store.add(encoded(1), b"", [])
    store.close()
    assert "no action" in run("plan", tmp_path / "x").output
    with pytest.raises(ConfigError, match="no round of which something was done"):
        run("plan", tmp_path / "x", "--decision", 1)


def test_plan_finds_a_decision_in_lines_of_frames(tmp_path: Path) -> None:
    lines = []
    for second in range(4):
        tick, decision = round_at(second, used_mib=900 if second % 2 else 500)
        lines.append(msgspec.json.encode(RecordedTick(tick, msgspec.Raw(encode_decision(decision)))) + b"\n")
    frames = tmp_path / "frames.jsonl"
    frames.write_bytes(b"".join(lines))
    assert "evicting spark/job-0" in run("plan", frames, "--decision", 2).output
    with pytest.raises(ConfigError, match="must be 1 to 2"):
        run("plan", frames, "--decision", 3)
    with pytest.raises(ConfigError, match="needs a recording"):
        run("plan", frames, "--at", "2027-01-15T08:00:07Z")
    frames.write_bytes(b"{}\n")
    with pytest.raises(ConfigError, match="needs a recording, or a file of an agent's --frames"):
        run("plan", frames, "--decision", 1)
    with pytest.raises(ConfigError, match="No such file or directory"):
        run("plan", tmp_path / "none", "--decision", 1)
    with pytest.raises(ConfigError, match="No such file or directory"):
        run("plan", tmp_path / "none")


def test_explain_says_why_and_what_became_of_it(path: Path) -> None:
    output = run("explain", path).output
    assert output.count("evicting spark/job-0") == 2
    assert "1. spark/job-0 (priority 5000, 201 MiB) evicted by api" in " ".join(output.split())
    assert "30" in output  # ms until the memory was back
    record = json.loads(run("explain", path, "--json", "--last", 1).output)
    assert record["node"] == "node-1" and record["outcomes"][0]["result"] == "done"
    assert record["latencies"]["decided_to_freed_ns"] == 30_000_000 - 5
    assert "cpu.max max → 1" in run("explain", path, "--writes").output


def test_show_says_what_there_is(path: Path) -> None:
    output = run("recording", "show", path).output
    assert "12 rounds from 2027-01-15T08:00:00.000Z" in output
    assert "12 samples" in output and "2 PlanDecided" in output and "run 0123abcd on node-1" in output
    path.write_bytes(path.read_bytes()[:-7])
    found = json.loads(run("recording", "show", path, "--json").output)
    assert found["rounds"] == 11 and "ends within a record" in found["problems"][0]
    assert "passed over: " in run("recording", "show", path).output


def test_the_schema_is_json_schema() -> None:
    import jsonschema

    schema = json.loads(run("recording", "schema").output)
    jsonschema.Draft202012Validator.check_schema(schema)


def test_a_redacted_recording_has_no_name_and_is_decided_alike(path: Path, tmp_path: Path) -> None:
    output = tmp_path / "share.rounds"
    assert "12 rounds; 0 act now" in run("recording", "redact", path, output).output
    reader = Recording(output).shards[0][1]
    assert reader.header.redacted and reader.header.node == "redacted"
    text = b"".join(reader.content.raw(head) for head in reader.content.records)
    assert [name for name in NAMES if name in text] == []
    lines = run("replay", output).output.splitlines()
    assert len(lines) == 3 and lines[-1].endswith("each is decided as it was")
    assert "(priority 5000, 201 MiB)" in lines[0]
    assert "evicted by api" in " ".join(run("explain", output).output.split())
    assert "cpu.max" in run("explain", "--writes", output).output


def test_what_tenants_write_is_in_no_part_of_a_redacted_recording(tmp_path: Path) -> None:
    text = {"koordinator.sh/cpuBurst": '{"policy":"auto","cpuBurstPercent":200}', "koordinator.sh/memoryQOS": "bigbank"}
    labels = {"koordinator.sh/qosClass": "BE", "team": "bigbank", "koordinator.sh/bigbank": "x"}
    store, encoder = FileStore(tmp_path / "node.rounds", Run("0123abcd", "bigbank"), 8 * MIB), RoundEncoder()
    for second in range(6):
        tick = tick_at(second, used_mib=900 if second == 4 else 500)
        first, *others = tick.frame.pods
        meta = replace(first.metadata, namespace="bigbank", annotations=text, labels=labels)
        main = Container("bigbank", ResourceRequirements({"memory": "100Mi"}))
        spec = replace(first.spec, containers=[main], priorityClassName="bigbank")
        tick = replace(tick, frame=replace(tick.frame, pods=(replace(first, metadata=meta, spec=spec), *others)))
        owner = Owner(5, OwnerKind.CONTAINER, f"kubepods/pod{meta.uid}", meta.uid, True, "bigbank", "bigbank")
        kill = OomKill(tick.frame.measured.now_ns, 7, 0, 10, 9, 0, 0, 42, True, "bigbank")
        event = recorded(OomKilled(kill, owner, kill.ts_ns), wall_ns(second) / NS_PER_S)
        store.add(encoder.encode(tick, decided_again(tick), wall_ns(second)), b"", [event])
    store.close()
    source, output = tmp_path / "node.rounds", tmp_path / "share.rounds"
    assert "6 rounds; 0 act now" in run("recording", "redact", source, output).output
    was, now = (Recording(each) for each in (source, output))
    for recording, is_there in ((was, True), (now, False)):
        (_, reader), *_ = recording.shards
        assert any(b"bigbank" in reader.content.raw(head) for head in reader.content.records) == is_there
    assert now.decisions == was.decisions == [4]
    assert [each.kind for each in now.events()] == ["OomKilled"] * 6
    assert now.events()[0].data["record"]["tgid"] == was.events()[0].data["record"]["tgid"] == 42
    for one, other in zip(was.rounds(), now.rounds(), strict=True):
        assert one.tick.frame.measured.node == other.tick.frame.measured.node
        (pod_was, *_), (pod_is, *_) = one.tick.frame.pods, other.tick.frame.pods
        assert (pod_is.metadata.annotations or {})["koordinator.sh/cpuBurst"] == text["koordinator.sh/cpuBurst"]
        assert pod_is.spec.containers[0].resources == pod_was.spec.containers[0].resources
    assert run("replay", output).output.splitlines()[-1].endswith("each is decided as it was")
    run("report", output, "-o", tmp_path / "page.html")
    assert "bigbank" not in (tmp_path / "page.html").read_text()


def test_the_same_name_has_another_hash_in_each_copy(path: Path, tmp_path: Path) -> None:
    pods = []
    for name in ("a", "b"):
        run("recording", "redact", path, tmp_path / name)
        found = Recording(tmp_path / name).round(0)
        assert found is not None
        pods.append([each.key for each in found.tick.frame.pods])
    assert not set(pods[0]) & set(pods[1])
    assert len(set(pods[0])) == len(pods[0])


def test_redact_replaces_a_recording_by_its_copy(path: Path) -> None:
    run("recording", "redact", path, path)
    assert Recording(path).shards[0][1].header.redacted
    assert len(Recording(path)) == 12


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (b'{"schema": 1}', "koordebpf plan reads frames"),
        (b"\x7fELF" + bytes(100), "must be a recording of an agent's rounds"),
    ],
)
def test_another_kind_of_file_is_named(tmp_path: Path, start: bytes, said: str) -> None:
    (tmp_path / "x").write_bytes(start)
    with pytest.raises(ConfigError, match=said):
        run("replay", tmp_path / "x")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file or directory"):
        run("replay", tmp_path / "none")
    assert not is_recording_path(str(tmp_path / "none"))
    assert is_recording_path(str(tmp_path))


@pytest.mark.parametrize("text", ["2027-01-15T08:00:00Z", "2027-01-15T09:00+01:00", "2027-01-15T08:00", "1800000000"])
def test_times_are_utc_or_say_otherwise(text: str) -> None:
    assert parse_time("--at", text) == wall_ns(0)


@pytest.mark.parametrize("text", ["nan", "inf", "1e400", "", "12:00"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_time("--at", text)


@pytest.mark.parametrize("redact", [False, True])
def test_record_refuses_what_cannot_be_written_before_it_records(tmp_path: Path, redact: bool) -> None:
    (tmp_path / "pods.yaml").write_text("apiVersion: v1\nkind: List\nitems: []\n")
    with pytest.raises(ConfigError, match="FILE" if redact else r"recorder\.file"):
        record_rounds(tmp_path, {}, {"files": (tmp_path / "pods.yaml",)}, 0.1, redact=redact)
    assert [each.name for each in tmp_path.iterdir()] == ["pods.yaml"]
