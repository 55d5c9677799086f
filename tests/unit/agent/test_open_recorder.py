"""Which recorder the settings open."""

from __future__ import annotations

import importlib.util
import logging
import os
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from koordebpf.agent.sinks import NOT_RECORDED, open_recorder
from koordebpf.collect.scope import open_scope
from koordebpf.configuration.settings import AgentConfig, RecorderSettings
from koordebpf.errors import ConfigError, SupportError
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from koordebpf.kernel.cgroup.kill import raise_thread_priority
from koordebpf.store.recorder.read import Recording
from koordebpf.store.sink import AgentStopped
from tests.contract.apiserver import until
from tests.support.values.rounds import round_ended


def opened(config: AgentConfig):  # type: ignore[no-untyped-def]
    return open_recorder(config, open_scope(find_memory_hierarchy(), None), "node-1")


def test_by_default_a_ring_of_the_machine_is_written(tmp_path: Path) -> None:
    assert AgentConfig().recorder.folder == Path("/var/lib/koordebpf")
    config = AgentConfig(recorder=RecorderSettings(folder=tmp_path / "kept"), run_dir=tmp_path / "run")
    recorder = opened(config)
    recorder.publish(round_ended(0))
    recorder.publish(AgentStopped(0))
    recording = Recording(tmp_path / "kept" / "recorder" / "machine")
    assert len(recording) == 1
    assert {shard.header.node for _, shard in recording.shards} == {"node-1"}


def test_without_a_folder_nothing_is_recorded() -> None:
    assert opened(AgentConfig(recorder=NOT_RECORDED)) is None


def test_a_file_is_in_place_of_the_folder(tmp_path: Path) -> None:
    config = AgentConfig(recorder=RecorderSettings(file=tmp_path / "x.rounds"))
    opened(config).close()
    assert (tmp_path / "x.rounds").exists()
    with pytest.raises(ConfigError, match=r"recorder\.file: .*must be a file that can be written: Is a directory"):
        opened(AgentConfig(recorder=RecorderSettings(file=tmp_path)))


def test_without_zstandard_an_agent_runs_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    config = AgentConfig(recorder=RecorderSettings(folder=tmp_path))
    with caplog.at_level(logging.WARNING, "koordebpf"):
        assert opened(config) is None
    assert "zstandard is not installed" in caplog.text
    with pytest.raises(SupportError, match="Install zstandard"):
        opened(replace(config, recorder=RecorderSettings(file=tmp_path / "x.rounds")))


@pytest.mark.parametrize("is_raised", [True, False])
def test_its_thread_has_the_priority_of_the_loop(tmp_path: Path, is_raised: bool) -> None:
    found: list[str | None] = []
    asking = threading.Thread(target=lambda: found.append(raise_thread_priority()))
    asking.start()
    asking.join()
    if found[0] is not None:
        pytest.skip(found[0])
    config = AgentConfig(recorder=RecorderSettings(file=tmp_path / "x.rounds"), lock_memory=is_raised)
    recorder = opened(config)
    recorder.publish(round_ended(0))
    until(lambda: recorder.counts.rounds, "a round")
    (thread,) = [each for each in threading.enumerate() if each.name == "recorder"]
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, thread.native_id or 0) == (-20 if is_raised else own)
    recorder.close()
