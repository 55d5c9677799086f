"""What 0.1.0 left behind is read by this version, and what it recorded is decided as it was.

`previous/` has the files of agents of that version, as they stood in their run directory when they were killed, and
frames with the plans that its `koordebpf plan --json` made of them, without the sentences.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from koordebpf.act.writer.journal import Journal
from koordebpf.cli.plan import plan
from koordebpf.decision.strategies import PARTS
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.state.amount import MEMORY, USED
from koordebpf.store.budget import KeptBudget
from koordebpf.store.frames import decode_tick
from koordebpf.store.recorder.read import Recording
from koordebpf.store.wal import Left, read_left
from koordebpf.strategies.cpu_suppress.values import KeptSuppression, adopted
from koordebpf.tools.recorder.rounds import DecidesAgain
from tests.support.version_1 import as_today, without_defaults

PREVIOUS = Path(__file__).parent / "previous"
_SENTENCES = ("sentence", "reason", "why", "detail", "text", "undo", "message")
CASES = [json.loads(line) for line in (PREVIOUS / "frames.jsonl").read_text().splitlines()]


def without_sentences(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_sentences(each) for key, each in value.items() if key not in _SENTENCES}
    return [without_sentences(each) for each in value] if isinstance(value, list) else value


def is_by_request(case: dict[str, Any]) -> bool:
    """Tell whether a pod was kept because its request could not be read, by which a tenant could keep any."""
    return any(each["code"] == "unreadable" for feature in case["plan"]["features"] for each in feature["excluded"])


AS_IT_WAS = [each for each in CASES if not is_by_request(each)]


def planned(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    path = folder / "frame.json"
    path.write_text(json.dumps(case["frame"]))
    done = CliRunner().invoke(plan, ["--json", str(path)])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = without_sentences(json.loads(done.stdout))
    return found


@pytest.mark.parametrize("case", AS_IT_WAS, ids=range(len(AS_IT_WAS)))
def test_a_recorded_frame_is_decided_as_it_was(case: dict[str, Any], tmp_path: Path) -> None:
    now, was = (without_defaults(as_today(each)) for each in (planned(case, tmp_path), case["plan"]))
    suppression = was.pop("suppression", {})  # it was beside the strategies, and there where nothing was measured, too
    if suppression.get("decision", {}).get("skipped") != "unmeasured":
        assert now["strategies"]["suppress"]["explained"] == suppression
    assert now == now | was  # what is new in a plan may be there, what was there is as it was


def test_whom_a_request_that_cannot_be_read_kept_is_evicted_now(tmp_path: Path) -> None:
    (case,) = [each for each in CASES if is_by_request(each)]
    before, now = ([each["candidate"]["name"] for feature in of["features"] for each in feature["victims"]]
                   for of in (case["plan"], planned(case, tmp_path)))  # fmt: skip
    assert (before, now) == (["hog"], ["odd"])


def test_the_frames_have_victims_and_reasons_enough() -> None:
    victims = [len(feature["victims"]) for case in CASES for feature in case["plan"]["features"]]
    assert len(CASES) > 50
    assert sum(count > 0 for count in victims) > 20
    assert sum(count > 1 for count in victims) > 3


def test_the_journal_has_what_the_files_held(tmp_path: Path) -> None:
    path = Path(shutil.copy(PREVIOUS / "writes.journal", tmp_path))
    boot_id = json.loads(path.read_bytes().splitlines()[0])["boot_id"]
    with Journal(path, boot_id) as journal:
        held = {file: (each.text, each.owners) for (_, file), each in journal.originals.items()}
        assert journal.lost_lines == 0
        assert len(journal.originals) == 3
    assert held[CgroupFile.FREEZE] == ("THAWED\n", ("ladder",))
    assert held[CgroupFile.CPU_QUOTA] == ("-1\n", ("suppress",))


def test_the_write_ahead_log_says_which_evictions_were_in_flight() -> None:
    left = read_left((PREVIOUS / "in-flight.jsonl").read_bytes())
    evicted = {uid for record in left.records for each in record.features for uid in each.victims}
    assert len(left.records) == 2
    assert len(left.kills) == 1
    (feature,) = left.records[0].features
    assert (feature.balance.credit, feature.ranking[0].of(MEMORY).used) == (178778112, 178778112)
    assert feature.verdict.amounts == {USED: 46651802}
    assert {kill.uid for kill in left.kills} <= evicted


def test_a_line_of_that_version_that_is_damaged_leaves_the_others() -> None:
    raw = (PREVIOUS / "in-flight.jsonl").read_bytes()
    damaged = [
        b'{"type":"intent","schema":"koordebpf.audit/v1"}',
        b'{"type":"intent","record":{"schema":"koordebpf.audit/v1","features":[{}]}}',
        b'{"type":"intent","record":[{"schema":"koordebpf.audit/v1"}]}',
        b'[{"schema":"koordebpf.audit/v1"}]',
    ]
    assert read_left(b"\n".join([*damaged, raw])) == read_left(raw) != Left()


def test_the_budget_counts_the_evictions_before(tmp_path: Path) -> None:
    path = Path(shutil.copy(PREVIOUS / "evictions.json", tmp_path))
    written = json.loads(path.read_bytes())["evictions"]
    newest_ns = max(each["at_ns"] for each in written)
    recent = KeptBudget(path, now_ns=newest_ns).budget.recent(newest_ns)
    assert [each.uid for each in recent] == [
        each["uid"] for each in written if newest_ns - each["at_ns"] < 3600 * 10**9
    ]
    assert len(recent) > 5


def test_suppression_starts_from_what_was_kept() -> None:
    kept = msgspec.json.decode((PREVIOUS / "suppression.json").read_bytes(), type=KeptSuppression)
    assert adopted(kept, kept.left_s + 1, keep_s=60).quota == "using"


@pytest.mark.parametrize("name", ["at-70", "at-85"])
def test_a_recording_with_plans_of_version_1_is_decided_again_bit_for_bit(name: str) -> None:
    recording, again = Recording(PREVIOUS.parent / "what_if" / f"{name}.rounds"), DecidesAgain()
    ((_, shard),) = recording.shards
    assert b'{"carried":' in shard.content.raw(shard.rounds[0])
    assert all(each.is_same(again.decide(each.tick)) for each in recording.rounds())


def test_what_each_strategy_measured_is_read_of_rounds_of_that_version() -> None:
    found = set()
    for line in (PREVIOUS.parent / "every_strategy" / "frames.jsonl").read_text().splitlines():
        parts = decode_tick(line.encode(), "frames").tick.frame.measured.parts
        assert all(isinstance(each, PARTS[name]) for name, each in parts.items())
        found |= parts.keys()
    assert found == PARTS.keys() - {"suppress"}  # no burst began one of these rounds
