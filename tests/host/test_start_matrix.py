"""What a start finds: each file and folder that an agent opens, and each thing that may stand there in its place.

An enforcing agent starts with less and says so, and evicts; it writes no cgroup value that no journal has. It ends with
one sentence where it may not run: without the node's lock, or its configuration. It never ends with a traceback, and
never waits.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest

from koordebpf.act.writer.journal import JOURNAL_PATH, OLD_LADDER_JOURNAL
from koordebpf.jobs.usage_series.keeper import SNAPSHOT_NAME
from koordebpf.policy.strategy import KEPT
from koordebpf.report.http.local_socket import ACTING_NAME
from koordebpf.store.wal import IN_FLIGHT_PATH
from koordebpf.strategies.hooks.values import COOKIES, SCORES
from koordebpf.strategies.resctrl.values import GROUPS
from tests.contract.apiserver import until
from tests.host.rigs.start import FAULTS, FOREIGN, READ, TAKE_NOTHING, Start, folder_that_takes_nothing, refused

JOURNAL = JOURNAL_PATH.name
# What an agent keeps in its folder, and the faults that keep it from it: what it reads, or writes in place.
LESS: dict[str, set[str]] = {
    IN_FLIGHT_PATH.name: READ,
    JOURNAL: READ | {"garbage"},
    OLD_LADDER_JOURNAL: {"fifo", "folder", "garbage"},  # a link that leads nowhere has nothing to restore
    KEPT: READ,
    "evictions.json": READ,
    "cgroup-root": READ,
    SNAPSHOT_NAME: READ,
    SCORES: {"fifo", "folder"},  # as the ladder's
    COOKIES: {"fifo", "folder"},
    GROUPS: set(),  # it is opened where resctrl is
    ACTING_NAME: {"folder"},  # else it is put in its place
    # Made beside those, and renamed: what is in the way is removed, but for a folder.
    f"{JOURNAL}.new": set(),
    "evictions.part": {"folder"},
    "cgroup-root.part": {"folder"},
    "series.part": {"folder"},
}
# The lock, and the folders that it lies in: without them no agent acts.
NEEDED = {"lock": READ, "": {"fifo", "link"}}
# test_start_matrix_features.py has the rows of these.
_OTHERS = {"pods.json", "prediction", "next.lock"}


@pytest.mark.slow
def test_all_that_a_good_start_leaves_has_a_row(start: Start) -> None:
    agent = start.begin("--recorder-folder", start.run / "state")
    agent.becomes_ready()
    until(lambda: start.held.quota_file.read_text() != start.quota, "a quota")
    start.evicts()
    found = {path.name for path in start.node.iterdir()}
    assert {JOURNAL, IN_FLIGHT_PATH.name, ACTING_NAME, "lock"} <= found
    assert found <= LESS.keys() | NEEDED.keys() | _OTHERS
    assert start.shown() == {}
    agent.stop()
    assert {path.name for path in start.node.iterdir()} <= LESS.keys() | _OTHERS


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_what_stands_in_the_place_of_a_file_costs_that_file(start: Start, fault: str) -> None:
    start.node.mkdir(mode=0o700)
    for name in LESS:
        FAULTS[fault](start.node / name)
    agent = start.begin()
    agent.becomes_ready()
    for name, faults in LESS.items():
        if fault in faults:
            agent.said(f"{start.node}: " if name == ACTING_NAME else f"{start.node / name.replace('.part', '')}")
    shown = start.shown()
    start.evicts()
    if fault in LESS[JOURNAL]:
        assert "no cgroup file is written" in shown[str(start.node / JOURNAL)]
        name = start.held.quota_file.name
        until(lambda: agent.metric(f'koordebpf_file_writes_total{{file="{name}",result="held"}}'), "a write held back")
        assert start.held.quota_file.read_text() == start.quota
    else:
        assert str(start.node / JOURNAL) not in shown
    start.ends_well()


@pytest.mark.slow
def test_on_a_full_file_system_it_evicts_and_writes_no_value_until_there_is_room(start: Start) -> None:
    start.fill()
    agent = start.begin()
    agent.becomes_ready()
    agent.said(f"{start.node / JOURNAL}: No space left on device: no cgroup file is written")
    assert str(start.node / JOURNAL) in start.shown()
    start.evicts()
    assert start.held.quota_file.read_text() == start.quota
    (start.run / "filler").unlink()
    until(lambda: start.held.quota_file.read_text() != start.quota, lambda: f"a quota, but:\n{agent.log}", 120)
    agent.said(f"{start.node / JOURNAL} can be used again")
    assert str(start.node / JOURNAL) not in start.shown()
    start.ends_well()


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["fifo", "link", *TAKE_NOTHING])
def test_without_its_folder_the_recorder_records_in_memory(start: Start, tmp_path: Path, fault: str) -> None:
    state = tmp_path / "state"
    state.mkdir()
    if fault in FAULTS and fault not in TAKE_NOTHING:
        FAULTS[fault](state / "recorder")
    with folder_that_takes_nothing(state, fault) if fault in TAKE_NOTHING else nullcontext():
        agent = start.begin("--recorder-folder", state)
        agent.becomes_ready()
        if fault != "foreign":
            agent.said(f"rounds are recorded in memory alone, in {start.run}")
            assert [each for each in start.shown() if each.startswith(str(state))]
        start.evicts()
        start.ends_well()


@pytest.mark.slow
def test_a_folder_of_another_user_costs_the_socket(start: Start) -> None:
    start.node.mkdir(mode=0o700)
    os.chown(start.node, FOREIGN, FOREIGN)
    agent = start.begin()
    agent.becomes_ready()
    assert "it belongs to another user" in start.shown()[str(start.node)]
    start.evicts()
    start.ends_well()


@pytest.mark.slow
def test_without_the_lock_it_does_not_start(start: Start) -> None:
    for name, faults in NEEDED.items():
        for fault in faults:
            start.node.parent.mkdir(exist_ok=True)
            if name:
                start.node.mkdir(mode=0o700)
            FAULTS[fault](start.node / name)
            refused(start.begin(), "must be", str(start.node))
            shutil.rmtree(start.node) if start.node.is_dir() else start.node.unlink()
    subprocess.run(["mount", "-o", "remount,ro", start.run], check=True)
    refused(start.begin(), "must be writable: Read-only file system", str(start.run))


@pytest.mark.slow
def test_a_configuration_that_cannot_be_read_ends_the_start(start: Start, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(start.begin("--config", tmp_path / "pipe"), "pipe", "nothing has come out of this pipe")
    refused(start.begin("--config", tmp_path), str(tmp_path), "Is a directory")
    refused(start.begin("--pods", tmp_path / "pipe"), "pipe", "must be a regular file")
    refused(start.begin("--audit", tmp_path), "--audit", "Is a directory")
    (tmp_path / "link").symlink_to("/nowhere/precious")
    refused(start.begin("--audit", tmp_path / "link"), "--audit", "a link must lead to a regular file")


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["fifo", "foreign", "garbage"])
def test_an_audit_that_is_no_empty_file_of_its_own(start: Start, tmp_path: Path, fault: str) -> None:
    audit = tmp_path / "audit"
    FAULTS[fault](audit)
    before = audit.stat().st_size
    agent = start.begin("--audit", audit)
    agent.becomes_ready()
    start.evicts()
    if fault == "fifo":  # which nothing reads
        agent.said(f"--audit {audit} does not answer: its lines wait in memory")
    else:
        until(lambda: audit.stat().st_size > before, "a line")
    start.ends_well()


@pytest.mark.slow
@pytest.mark.parametrize("why", TAKE_NOTHING)
def test_an_audit_in_a_folder_that_takes_nothing(start: Start, tmp_path: Path, why: str) -> None:
    folder = tmp_path / "audits"
    folder.mkdir()
    with folder_that_takes_nothing(folder, why):
        agent = start.begin("--audit", folder / "audit")
        agent.becomes_ready()
        start.evicts()
        if why != "foreign":
            until(lambda: str(folder / "audit") in start.shown(), lambda: f"the audit, but {start.shown()}")
        start.ends_well()
