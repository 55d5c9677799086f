"""What is said of all commands in one place: schemas, exit codes, manual pages. No command is left out."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator

from koordebpf import errors
from koordebpf.cli import root
from koordebpf.cli.explain import node
from koordebpf.cli.man import GENERAL, SPECIAL, man_pages
from koordebpf.cli.schemas import TYPES, object_schema

ROOT = Path(__file__).parents[3]


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command that does something, with its groups before its name."""

    def below(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
        if not isinstance(command, click.Group):
            yield name, command
            return
        context = click.Context(command)
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None
            yield from below(f"{name} {each}".strip(), found)

    yield from below("", root())
    yield "explain node", node


COMMANDS = dict(commands())
WITH_JSON = [name for name, command in COMMANDS.items() if any(each.name == "as_json" for each in command.params)]


def schema_members(schema: dict[str, object]) -> list[str]:
    """Return what each kind of object of a schema has as its `schema`."""
    definitions = schema["$defs"]
    assert isinstance(definitions, dict)
    items = schema.get("items", schema)
    assert isinstance(items, dict)
    ways = items.get("anyOf") or items.get("oneOf") or [items]
    members = []
    for way in ways:
        member = definitions[way["$ref"].rpartition("/")[2]]["properties"]["schema"]
        members += [member["const"]] if "const" in member else member["enum"]
    return members


def test_there_are_commands_with_json() -> None:
    assert len(WITH_JSON) >= 12


@pytest.mark.parametrize("name", WITH_JSON)
def test_what_prints_json_prints_its_schema_too_and_each_object_names_it(name: str) -> None:
    arguments = ["plan", "--schema", "plan"] if name == "plan" else [*name.split(), "--schema"]
    done = CliRunner().invoke(root(), arguments, catch_exceptions=False)
    assert done.exit_code == 0
    schema = json.loads(done.output)
    Draft202012Validator.check_schema(schema)
    members = schema_members(schema)
    assert members
    assert all(re.fullmatch(r"koordebpf\.[a-z-]+/v[12]", each) for each in members)


@pytest.mark.parametrize("name", TYPES)
def test_each_object_has_the_name_that_its_schema_says(name: str) -> None:
    (member,) = schema_members(object_schema(name))
    assert re.fullmatch(rf"koordebpf\.{name}/v[12]", member)


def test_a_plan_is_what_its_schema_says() -> None:
    frame = str(ROOT / "tests/scenarios/frames/hog-is-evicted.json")
    printed = json.loads(CliRunner().invoke(root(), ["plan", "--json", frame]).output)
    assert printed["schema"] == "koordebpf.plan/v2"
    Draft202012Validator(object_schema("plan")).validate(printed)


def test_problems_of_a_configmap_are_what_their_schema_says(tmp_path: Path) -> None:
    path = tmp_path / "cm.json"
    meta = {"name": "slo-controller-config"}
    data = {"resource-threshold-config": "{", "no-such": "{}"}
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}))
    printed = json.loads(CliRunner().invoke(root(), ["slo", "check", "--json", str(path)]).output)
    assert [each["schema"] for each in printed] == ["koordebpf.slo-problem/v1"] * 2
    Draft202012Validator(object_schema("slo-problem", is_list=True)).validate(printed)


def test_every_error_has_a_code_of_the_table() -> None:
    kinds = [each for _, each in inspect.getmembers(errors, inspect.isclass) if issubclass(each, errors.KoordebpfError)]
    assert {each.exit_code for each in kinds} <= set(GENERAL)


def test_only_commands_that_there_are_have_codes() -> None:
    assert set(SPECIAL) <= set(COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["no-such-command"], 2),
        (["plan", str(ROOT / "tests/scenarios/frames/hog-is-evicted.json")], 0),
        (["plan", "--strict", str(ROOT / "tests/scenarios/frames/hog-is-evicted.json")], 0),
        (["config", "check", str(ROOT / "deploy/examples/settings.yaml")], 0),
        (["slo", "check", str(ROOT / "deploy/examples/slo-controller-config.yaml")], 0),
        (["completion", "tcsh"], 2),
    ],
)
def test_a_command_ends_as_the_table_says(arguments: list[str], code: int) -> None:
    assert CliRunner().invoke(root(), arguments).exit_code == code


MAN = dict(man_pages(root()))


def test_every_command_has_a_manual_page() -> None:
    assert {f"koordebpf-{name.replace(' ', '-')}.1" for name in COMMANDS} <= set(MAN)


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed; apt-get install groff-base")
def test_manual_pages_are_rendered_without_a_warning() -> None:
    text = "".join(MAN.values())
    done = subprocess.run(
        ["groff", "-ww", "-man", "-Tascii", "-P-c"], input=text, capture_output=True, text=True, check=True
    )
    # What ASCII has no character for is of the device, not of the page.
    assert [line for line in done.stderr.splitlines() if "can't find special character" not in line] == []
    shown = re.sub(r".\x08", "", done.stdout)
    assert shown.count("\nEXIT STATUS") == len(MAN)
