"""Scripts and scenarios of vagrant/: what they take of a node, and which scenario is refused."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from koordebpf.errors import ConfigError
from vagrant.scenarios import scenario
from vagrant.scenarios.scenario import FOLDER, load


@pytest.mark.parametrize(("given", "taken"), [("512", "512"), ("65536", "6144")])
def test_no_script_takes_more_than_its_programs_do(given: str, taken: str) -> None:
    command = f'. {shlex.quote(str(FOLDER))}/node.sh; echo "$NODE_MIB"'
    done = subprocess.run(
        ["sh", "-euc", command], env={"NODE_MIB": given, "PATH": "/usr/bin:/bin"}, capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == taken


def test_a_scenario_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="must be one of batch-allocatable-to-zero, "):
        load("none")
    monkeypatch.setattr(scenario, "FOLDER", tmp_path)
    (tmp_path / "bad").mkdir()
    for text in ("title: t\npods: {}\nexpects: []\nmore: 1\n", "title: t\npods: {}\nexpects: [{by: run, says: '('}]\n"):
        (tmp_path / "bad/scenario.yaml").write_text(text)
        with pytest.raises(ConfigError, match=r"bad/scenario.yaml.*must be a scenario"):
            load("bad")
