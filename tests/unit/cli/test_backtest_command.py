"""`koordebpf backtest` on files of frames."""

from __future__ import annotations

import json
import random
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from koordebpf.cli.backtest import backtest
from koordebpf.decision.decide_tick import TickFrame, TickSettings
from koordebpf.decision.frames import encode_frame
from koordebpf.errors import ConfigError
from koordebpf.jobs.usage_series.snapshot import SnapshotWriter
from koordebpf.kernel.proc.cpu_topology import Cpu, CpuTopology
from koordebpf.state.cpu.measured import CpuMeasured, CpuUsage, OtherPodsCpu, PodCpu
from koordebpf.state.guard_facts import GuardFacts
from koordebpf.state.series.store import SeriesStore
from koordebpf.store.frames import RecordedTick
from koordebpf.units import MIB, NS_PER_S
from tests.support.values.builders import frame, ls_pod, pod

TOPOLOGY = CpuTopology((Cpu(0, 0, 0, 0), Cpu(1, 1, 0, 0)), (0, 1))


def run(*arguments: str, exit_code: int = 0) -> str:
    result = CliRunner().invoke(backtest, list(arguments), catch_exceptions=False)
    assert result.exit_code == exit_code, result.output
    return result.output


def line(minute: int, *, used_mib: int, be_millicpu: int | None, ticks: bool = False) -> bytes:
    made = frame([pod("be", anon=used_mib // 3), ls_pod("ls", anon=used_mib // 2)], used=used_mib)
    cpu = None
    if be_millicpu is not None:
        usage = CpuUsage(
            NS_PER_S,
            2 * be_millicpu + 100,
            be_millicpu,
            (PodCpu("uid-spark-be", be_millicpu, is_best_effort=True),),
            OtherPodsCpu(be_millicpu),
        )
        cpu = CpuMeasured(TOPOLOGY, usage=usage)
    now_ns = (1000 + 60 * minute) * NS_PER_S
    made = replace(made, measured=replace(made.measured, now_ns=now_ns, cpu=cpu))
    if not ticks:
        return encode_frame(made) + b"\n"
    facts = GuardFacts(now_ns=0, source="file", pods_synced_ns=None)
    tick = TickFrame(frame=made, settings=TickSettings(), guards=facts)
    return msgspec.json.encode(RecordedTick(tick, msgspec.Raw(b"{}"))) + b"\n"


def recording(folder: Path, *, minutes: int = 300, cpu: bool = True, ticks: bool = False, doubled: int = 999) -> Path:
    chance = random.Random(17)
    path = folder / "frames.jsonl"
    with path.open("wb") as file:
        for minute in range(minutes):
            share = chance.uniform(0.995, 1.005) * (1 if minute < doubled else 2)
            file.write(
                line(minute, used_mib=int(300 * share), be_millicpu=int(500 * share) if cpu else None, ticks=ticks)
            )
    return path


@pytest.mark.parametrize("ticks", [False, True])
def test_the_table_has_pods_bands_system_and_node(tmp_path, ticks):
    shown = run(str(recording(tmp_path, ticks=ticks)), "--warm-up", "200")
    lines = shown.splitlines()
    assert lines[0] == "299 intervals of 60 s; a model predicts after 200 samples of its own"
    assert [row.split()[:3] for row in lines[3:-2]] == [
        [of, resource, percent]
        for of in ("pods", "node", "system", "koord-prod", "koord-batch")
        for resource, percent in (("cpu", "p95"), ("memory", "p98"))
    ]
    assert lines[-1] == "every peak was exceeded in at most 5% of the intervals"


def test_a_load_that_doubles_is_said_with_its_excess_and_the_exit_code(tmp_path):
    path = recording(tmp_path, doubled=285)
    found = json.loads(run(str(path), "--warm-up", "250", "--json", exit_code=1))
    cpu = next(row for row in found["rows"] if (row["of"], row["resource"]) == ("koord-batch", "cpu"))
    assert cpu["intervals"] == 49 and 0.05 < cpu["exceeded_ratio"] <= 15 / 49
    assert 0.4 < cpu["excess_max"] < 1.6
    said = run(str(path), "--warm-up", "250", exit_code=1).splitlines()[-1]
    assert "were exceeded in more than 5% of the intervals; most often" in said


def test_without_cpu_only_memory_is_judged_and_the_reason_is_said(tmp_path):
    shown = run(str(recording(tmp_path, minutes=60, cpu=False)))
    assert "no CPU was recorded" in shown and " cpu " not in shown and "memory" in shown


def test_the_settings_of_a_file_are_used(tmp_path):
    config = tmp_path / "agent.yaml"
    config.write_text(
        "apiVersion: koordebpf.io/v1alpha1\nkind: AgentConfiguration\nprediction: {memoryPeakPercent: 50}\n"
    )
    path = recording(tmp_path, minutes=200)
    found = json.loads(run(str(path), "--config", str(config), "--json", "--warm-up", "100"))
    percents = {row["resource"]: row["percent"] for row in found["rows"]}
    assert percents == {"cpu": 95, "memory": 50}


def test_an_interval_of_other_seconds(tmp_path):
    path = recording(tmp_path, minutes=100)
    assert run(str(path), "--every", "120").startswith("49 intervals of 120 s")


@pytest.mark.parametrize("content", [b"", b"{}\n", b"no frame\n", b"\xff\n"])
def test_what_is_no_recording_is_named(tmp_path, content):
    path = tmp_path / "frames.jsonl"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=str(path)):
        run(str(path))


def test_an_unfinished_last_line_is_passed_over(tmp_path):
    path = recording(tmp_path, minutes=60)
    without_it = run(str(path))
    with path.open("ab") as file:
        file.write(line(60, used_mib=300, be_millicpu=500)[:-40])
    assert run(str(path)) == without_it


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match="No such file or directory"):
        run(str(tmp_path / "none.jsonl"))


def test_memory_is_what_koordinator_counts(tmp_path):
    from koordebpf.tools.backtest import Recording

    (tmp_path / "one.jsonl").write_bytes(line(0, used_mib=300, be_millicpu=500))
    (seen,) = Recording([tmp_path / "one.jsonl"])
    assert seen.pods["uid-spark-be"].memory_bytes == 100 * MIB
    assert seen.pods["other pods"].memory_bytes == 150 * MIB and seen.pods["other pods"].cpu_cores == 0.5
    assert seen.bands == {"uid-spark-be": "koord-batch", "uid-web-ls": "koord-prod", "other pods": "koord-prod"}
    assert seen.node is not None and (seen.node.cpu_cores, seen.node.memory_bytes) == (1.1, 300 * MIB)


class TestSeries:
    def snapshot(self, folder: Path, minutes: int = 28) -> Path:
        store = SeriesStore()
        for second in range(minutes * 60):
            values = {("pod_cpu_usage", "u"): 1.0, ("pod_memory_usage", "u"): 1e9, ("node_cpu_usage",): 2.0}
            store.append_round((second + 1) * NS_PER_S, {**values, ("node_memory_usage",): 4e9})
        path = folder / "series.snapshot"
        SnapshotWriter(path, store).write(minutes * 60 * NS_PER_S)
        return path

    def test_a_snapshot_of_an_agent_is_judged(self, tmp_path):
        shown = run("--series", str(self.snapshot(tmp_path)))
        assert shown.startswith("27 intervals of 60 s")
        assert {line.split()[0] for line in shown.splitlines()[3:-2]} == {"pods", "node", "system"}

    def test_what_is_no_snapshot_is_named(self, tmp_path):
        (tmp_path / "other").write_bytes(b"{}")
        with pytest.raises(ConfigError, match="must be a snapshot of series"):
            run("--series", str(tmp_path / "other"))
        with pytest.raises(ConfigError, match="No such file or directory"):
            run("--series", str(tmp_path / "none"))

    def test_it_is_frames_or_series(self, tmp_path):
        assert "give FRAMES or --series" in run(exit_code=2)
        assert "give FRAMES or --series" in run("--series", "x", "y", exit_code=2)
