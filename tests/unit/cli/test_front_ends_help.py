"""The help of `trace`, `top` and `doctor`: a page of a manual, at once, on any terminal."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from koordebpf.cli import _group
from koordebpf.cli.trace import trace
from koordebpf.report.record_line import KINDS

COMMANDS = ("trace", "top", "doctor")
HEAVY = {"rich", "kubernetes", "urllib3", "yaml", "prometheus_client", "psutil", "msgspec", "ctypes"}


def help_of(command: str) -> list[str]:
    done = CliRunner().invoke(_group, [command, "--help"], terminal_width=80, max_content_width=80)
    assert done.exit_code == 0
    return done.output.splitlines()


@pytest.mark.parametrize("command", COMMANDS)
class TestHelp:
    def test_it_fits_80_columns(self, command: str) -> None:
        assert max(map(len, help_of(command))) <= 80

    def test_it_says_what_it_costs_how_to_provoke_something_and_gives_examples(self, command: str) -> None:
        text = "\n".join(help_of(command))
        assert "  Cost: " in text
        assert "  Provoke " in text or "  Try it, " in text
        assert f"  Examples:\n    koordebpf {command} " in text

    def test_its_examples_have_options_that_exist(self, command: str) -> None:
        lines = help_of(command)
        given = {word for line in lines if line.startswith(f"    koordebpf {command} ") for word in line.split()}
        declared = {line.split()[0].rstrip(",") for line in lines if line.startswith("  --")}
        assert {word for word in given if word.startswith("--")} <= declared

    def test_it_loads_nothing_that_the_command_needs(self, command: str) -> None:
        script = (
            "import sys; from koordebpf.cli import main\n"
            f"try: main([{command!r}, '--help'])\n"
            "except SystemExit: print(*sys.modules, file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert {name.partition(".")[0] for name in done.stderr.split()} & HEAVY == set()


def test_the_kinds_are_those_of_the_records() -> None:
    (kind,) = (option for option in trace.params if option.name == "kind")
    assert isinstance(kind.type, click.Choice)
    assert tuple(kind.type.choices) == (*KINDS, "all")
    assert all(any(line.lstrip().startswith(name) or name in line for line in help_of("trace")) for name in KINDS)


def test_a_configuration_is_for_the_frame_of_top() -> None:
    done = CliRunner().invoke(_group, ["top", "--once", "--config", "agent.yaml"])
    assert done.exit_code == 2
    assert "--config needs --frame" in done.output
