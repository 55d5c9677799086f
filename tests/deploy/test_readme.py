"""The commands of deploy/README.md and of the chart's notes, as far as they go without a cluster."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import documented
from tests.deploy.programs import helm
from tests.deploy.rendered import CHART, DEPLOY, NAMESPACE, built, by_name, overlay_with, pod_specs

ROOT = DEPLOY.parent
README = (DEPLOY / "README.md").read_text()
NOTES = (CHART / "templates/NOTES.txt").read_text()
# What kubectl reads in the chart's notes where Helm put it.
_RENDERED = {"{{ $namespace }}": NAMESPACE, "{{ .Release.Name }}": "koordebpf", "CHART": "deploy"}


def commands() -> list[list[str]]:
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    noted = [line.strip() for line in NOTES.splitlines() if re.match(r"  (kubectl|helm) ", line)]
    for old, new in _RENDERED.items():
        noted = [line.replace(old, new) for line in noted]
    return [shlex.split(line, comments=True) for line in [*lines, *noted] if "{{" not in line]


def of(program: str, *verbs: str) -> list[list[str]]:
    found = [command for command in commands() if command[0] == program and (not verbs or set(verbs) & set(command))]
    assert found
    return found


def option(command: Sequence[str], name: str) -> str | None:
    return command[command.index(name) + 1] if name in command else None


@pytest.fixture(scope="module")
def applied() -> dict[tuple[str, str], dict[str, Any]]:
    return by_name(built(DEPLOY / "overlays/enforce"))


def test_what_is_applied_and_deleted_is_there() -> None:
    for command in of("kubectl", "apply", "delete"):
        if folder := option(command, "-k"):
            assert built(ROOT / folder)
        elif path := option(command, "-f"):
            assert all(one["kind"] for one in yaml.safe_load_all((ROOT / path).read_text()))
        else:
            pytest.fail(f"neither -k nor -f: {command}")


def test_workloads_that_are_named_are_there(applied: dict[tuple[str, str], Any]) -> None:
    named = {word for command in of("kubectl") for word in command if re.match(r"(ds|daemonset|deployment)/", word)}
    kinds = {"ds": "DaemonSet", "daemonset": "DaemonSet", "deployment": "Deployment"}
    assert named
    assert {(kinds[kind], name) for kind, _, name in (word.partition("/") for word in named)} <= set(applied)


def test_pods_are_looked_for_by_labels_that_they_have(applied: dict[tuple[str, str], Any]) -> None:
    labels = [
        each["spec"]["template"]["metadata"]["labels"]
        for each in applied.values()
        if each["kind"] in ("DaemonSet", "Deployment")
    ]
    for command in of("kubectl", "logs"):
        if selector := option(command, "-l"):
            key, _, value = selector.partition("=")
            assert any(each.get(key) == value for each in labels), selector


def test_nodes_are_labelled_as_the_agents_choose_them(applied: dict[tuple[str, str], Any]) -> None:
    chosen = applied["DaemonSet", "koordebpf-agent-enforce"]["spec"]["template"]["spec"]["nodeSelector"]
    label = "koordebpf.io/mode"
    for command in of("kubectl", "label"):
        if "node" in command:
            assert command[-1] in {f"{label}={chosen[label]}", f"{label}-"}


def test_what_runs_in_a_container_is_a_command_of_ours() -> None:
    run = [command[command.index("--") + 1 :] for command in of("kubectl", "exec")]
    for program, *arguments in run:
        assert program == "koordebpf"
        done = subprocess.run([sys.executable, "-m", program, *arguments, "--help"], capture_output=True, check=False)
        assert done.returncode == 0


@pytest.mark.parametrize("verb", ["install", "upgrade"])
def test_helm_renders_what_is_installed(verb: str) -> None:
    for command in of("helm", verb):
        # Of an upgrade too: values that the release has already are not needed for it.
        arguments = [word for word in command[2:] if word != "--reuse-values"]
        done = subprocess.run([helm(), "template", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        names = set(by_name([one for one in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if one]))
        assert (("DaemonSet", "koordebpf-agent-enforce") in names) is ("enforce.enabled=true" in command)


def test_helm_knows_the_other_commands() -> None:
    for command in of("helm"):
        assert subprocess.run([helm(), command[1], "--help"], capture_output=True, check=False).returncode == 0


def test_every_component_is_explained_with_the_value_that_stands_for_it(tmp_path: Path) -> None:
    rows = dict(re.findall(r"^\| `([\w-]+)` \| `([\w.]+)` \|", README, re.MULTILINE))
    assert rows.keys() == {path.name for path in (DEPLOY / "components").iterdir()}
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    for path in rows.values():
        value: Any = values
        for part in path.split("."):
            value = value[part]
        assert value in (False, "")
    assert pod_specs(built(overlay_with(tmp_path, "observe", ["privileged"])))  # as the comment of the overlay says


def test_it_names_every_folder() -> None:
    cells = re.findall(r"^\| ([^|]+) \|", README, re.MULTILINE)
    first = {name.split("/")[0] for cell in cells for name in re.findall(r"`([\w./-]+)`", cell)}
    expected = {path.name for path in DEPLOY.iterdir() if path.is_dir() or path.suffix == ".md"}
    assert expected - {"README.md"} <= first


def test_what_it_shows_is_of_a_command_of_its_section() -> None:
    """tests/cluster/test_deployed.py types these, and compares."""
    sections = re.findall(r"^## (.+)$", README, re.MULTILINE)
    shown = {each: documented.transcripts(each) for each in sections}
    assert sum(map(len, shown.values())) > 5
    assert [command for each in sections for command in shown[each] if command not in documented.commands(each)] == []


@pytest.mark.parametrize(
    ("printed", "is_alike"),
    [
        ("agent-x2k7p  1/1  Running  0  1m20s\nlow: 29 % of 3.0 GiB", True),
        ("agent-9ffb2 1/1 Running 0 5s\nlow:\n  30 % of 900 MiB\n", True),
        ("agent-x2k7p  1/1  Running  0  1m20s\nlow: 29 % of 913.1\n  MiB", True),
        ("agent-x2k7p  0/1  Running  0  1m20s\nlow: 29 % of 3.0 GiB", False),
        ("agent-x2k7p  1/1  Running  0  1m20s\nlow:  - % of 3.0 GiB", True),
        ("agent-x2k7p  1/1  Running  0  1m20s\nweb: 29 % of 3.0 GiB", False),
    ],
)
def test_what_it_shows_may_differ_in_numbers_and_widths(printed: str, is_alike: bool) -> None:
    shown = ["koordebpf-agent-zzzzz   1/1   Running   0   7s", "low: 31 % of 2.9 GiB"]
    assert documented.is_like(f"koordebpf-{printed}", shown) is is_alike


def test_three_points_stand_for_any_lines() -> None:
    shown = ["first 1", documented.OMITTED, "last 2"]
    assert documented.is_like("first 5\nmore\nand more\nlast 9", shown)
    assert not documented.is_like("more\nlast 9", shown)
