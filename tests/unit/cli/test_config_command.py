"""`koordebpf config` and `koordebpf run --config` as a person types them."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import jsonschema
import pytest
import yaml
from click.testing import CliRunner, Result

from koordebpf.cli import _group
from koordebpf.cli.config import config
from koordebpf.configuration.checked import agent_config
from koordebpf.configuration.settings import AgentConfig
from koordebpf.errors import ConfigError
from koordebpf.units import NS_PER_S

GOOD = """
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
source: {type: api, nodeName: from-file}
guards: {evictionsPerMinute: 3, podsMaxAge: 20s, lostMaxRatio: 0.5}
featureGates: {MemoryEvict: true}
"""


@pytest.fixture
def good(tmp_path: Path) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(GOOD)
    return str(path)


def type_in(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(config, list(arguments), input=stdin, catch_exceptions=False)


def test_check_says_what_differs_from_the_defaults(good: str) -> None:
    done = type_in("check", good)
    assert done.exit_code == 0
    assert done.output.splitlines() == [
        'source.type: "api" (default "file")',
        'source.nodeName: "from-file" (default null)',
        "featureGates.MemoryEvict: true (default false)",
        'guards.podsMaxAge: "20s" (default "1m30s")',
        "guards.lostMaxRatio: 0.5 (default 0.01)",
        "guards.evictionsPerMinute: 3 (default 10)",
        f"{good}: nothing wrong; 6 settings differ from the defaults",
    ]


def test_check_says_everything_that_is_wrong_and_ends_with_2() -> None:
    done = type_in("check", "-", stdin=GOOD.replace("3,", "none,") + "sampling: {flor: 1s}\n")
    assert done.exit_code == 2
    assert done.output.splitlines() == [
        "-:5:10: guards.evictionsPerMinute: 'none': must be an integer",
        "-:7:12: sampling.flor: '1s': no such field; did you mean floor?",
    ]


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="No such file or directory"):
        type_in("check", "/no/such/file")


def test_show_prints_a_file_that_says_the_same(good: str, tmp_path: Path) -> None:
    shown = tmp_path / "shown.yaml"
    shown.write_text(type_in("show", good).output)
    assert yaml.safe_load(shown.read_text())["guards"]["podsMaxAge"] == "20s"
    assert type_in("show", str(shown)).output == shown.read_text()
    assert type_in("check", "-", stdin=type_in("show").output).output == (
        "-: nothing wrong; 0 settings differ from the defaults\n"
    )


def test_the_schema_accepts_the_file(good: str) -> None:
    schema = json.loads(type_in("schema").output)
    jsonschema.validate(yaml.safe_load(GOOD), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**yaml.safe_load(GOOD), "enforce": True}, schema)


class Runs:
    """`koordebpf run` up to where the agent would begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        self._configs: list[AgentConfig] = []
        monkeypatch.setattr("koordebpf.agent.run.run_agent", self._configs.append)
        # What it says of the configuration goes to the log of the test.
        monkeypatch.setattr("koordebpf.report.log_formats.set_up_logging", lambda **_: None)

    def __call__(self, *arguments: str, **environ: str) -> AgentConfig:
        with self._caplog.at_level(logging.INFO, logger="koordebpf"):
            done = CliRunner().invoke(
                _group,
                ["run", *arguments],
                env=environ,
                catch_exceptions=False,
                auto_envvar_prefix="KOORDEBPF",
            )
        assert done.exit_code == 0, done.output
        return self._configs.pop()

    @property
    def said(self) -> list[str]:
        return [record.getMessage() for record in self._caplog.records]


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Runs:
    for name in ("KOORDEBPF_BACKEND", "NODE_NAME", "KOORDEBPF_NODE_NAME"):
        monkeypatch.delenv(name, raising=False)
    return Runs(monkeypatch, caplog)


def test_without_anything_it_runs_with_the_defaults(runs: Runs) -> None:
    assert runs() == agent_config({})
    assert runs.said == []


def test_it_takes_the_file(runs: Runs, good: str) -> None:
    found = runs("--config", good)
    assert (found.source, found.executor, found.node_name) == ("api", "api", "from-file")
    assert (found.guards.evictions_per_minute, found.guards.pods_max_age_ns) == (3, 20 * NS_PER_S)
    assert found.feature_gates == {**agent_config({}).feature_gates, "MemoryEvict": True}
    assert not found.enforce
    assert runs.said == []


def test_the_command_line_precedes_the_file_and_says_so(runs: Runs, good: str) -> None:
    found = runs(
        *("--config", good, "--node-name", "typed", "--evictions-per-minute", "7", "--min-stall-ms", "2"),
        *("--feature-gates", "MemoryEvict=false"),
    )
    assert (found.node_name, found.guards.evictions_per_minute, found.min_stall_ns) == ("typed", 7, 2_000_000)
    assert (found.guards.pods_max_age_ns, found.guards.lost_max_ratio) == (20 * NS_PER_S, 0.5)
    assert found.feature_gates["MemoryEvict"] is False
    places = "featureGates.MemoryEvict, guards.evictionsPerMinute, source.nodeName"
    assert runs.said == [f"the command line takes precedence over {good}: {places}"]


def test_the_environment_counts_as_typed_but_for_enforcement(runs: Runs, good: str) -> None:
    found = runs("--config", good, NODE_NAME="n7", KOORDEBPF_RUN_AUDIT="-", KOORDEBPF_RUN_ENFORCE="true")
    assert (found.node_name, found.audit, found.enforce) == ("n7", Path("-"), False)
    assert runs("--config", good, "--enforce").enforce


def test_what_the_file_contradicts_the_command_line_may_correct(runs: Runs, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(GOOD.replace("type: api, ", "") + "emergency: {action: kill-be}\n")
    done = type_in("check", str(path))
    assert done.exit_code == 2
    assert "emergency.action: 'kill-be': needs source api" in done.output
    assert runs("--config", str(path), "--source", "api").emergency.action == "kill-be"
    with pytest.raises(ConfigError, match="needs source api"):
        runs("--config", str(path))


def test_gates_of_koordlet_that_do_nothing_here_are_named(runs: Runs) -> None:
    found = runs("--feature-gates", "HamiCoreVGPUMonitor=true,MemoryEvict=true")
    assert found.feature_gates["MemoryEvict"]
    assert runs.said == ["feature gates of koordlet that do nothing here: HamiCoreVGPUMonitor"]


def test_a_file_that_is_wrong_ends_with_all_that_is_wrong(runs: Runs, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"{GOOD}enforce: true\ncompat: mostly\n")
    with pytest.raises(ConfigError) as caught:
        runs("--config", str(path))
    assert len(str(caught.value).splitlines()) == 2
