"""README and docs/: their commands run, their transcripts are what the program prints, and what they name exists."""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from koordebpf.demo.screen import Screen
from koordebpf.demo.stories import LIMIT_BYTES, STORIES
from tests.support.transcript import of_demo_page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        *(ROOT / name / "README.md" for name in (".", "bpf", "deploy", "tests", "vagrant")),
        *(ROOT / "koordebpf").rglob("README.md"),
        *DOCS.rglob("*.md"),
    ]
)
TOP = ("bpf/", "koordebpf/", "tests/", "deploy/", "docs/", "vagrant/", ".ci/")
MAX_README_LINES = 150


def blocks(language: str) -> list[str]:
    return [block for path in PAGES for block in re.findall(rf"```{language}\n(.*?)```", path.read_text(), re.DOTALL)]


def shell_commands() -> list[str]:
    lines = [line.split("#")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line]


def koordebpf(command: str) -> subprocess.CompletedProcess[str]:
    name, *arguments = shlex.split(command)
    assert name == "koordebpf"
    return subprocess.run(
        [sys.executable, "-m", "koordebpf", *arguments],
        cwd=ROOT, env=os.environ | {"COLUMNS": "80"}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def anchors(path: Path) -> set[str]:
    """Return what a link may name after `#`, as GitHub makes it of each heading."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(path: Path) -> list[str]:
    """Return the relative links of a page that lead to no file, or to no heading of one."""
    links = re.findall(r"\]\((?!https?:)([^)\s]+)", re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL))
    broken = []
    for link in links:
        name, _, anchor = link.partition("#")
        target = path.parent / name if name else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))


# Those that only print. `make …` would run this very test again.
@pytest.mark.parametrize("command", [line for line in shell_commands() if line.startswith("koordebpf ")])
def test_a_command_of_a_page_runs(command):
    done = koordebpf(command)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.parametrize("transcript", blocks("console"), ids=lambda text: text.splitlines()[0])
def test_a_transcript_is_what_the_program_prints(transcript):
    first, expected = transcript.split("\n", 1)
    assert first.startswith("$ ")
    assert koordebpf(first.removeprefix("$ ")).stdout == expected


def test_the_transcript_of_the_demo_begins_as_the_demo_does():
    """The whole of it is compared where the demo runs: tests/host/test_demo.py."""
    out = io.StringIO()
    Screen(out).begin(STORIES["hog"], LIMIT_BYTES)
    assert of_demo_page()[1].head == out.getvalue()


def test_every_command_of_a_page_is_known():
    commands = shell_commands()
    assert commands
    # Those of kubectl and helm need a cluster, docker its engine and vagrant a hypervisor; the files that they name are
    # looked for below.
    known = {"koordebpf", "make", "kubectl", "helm", "docker", "vagrant"}
    assert [line for line in commands if line.split()[0] not in known] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
class TestPage:
    def test_its_make_targets_exist(self, path):
        text = path.read_text()
        named = re.findall(r"`make ([a-z-]+)`", text) + re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)
        assert set(named) <= make_targets()

    def test_its_paths_exist(self, path):
        text = path.read_text()
        here = [name for name in re.findall(r"^\| \[?`([\w.-]+/?)`", text, re.MULTILINE) if name.endswith(("/", ".c"))]
        named = [name for name in re.findall(r"[`\s]((?:[\w.-]+/)+[\w.-]*)", text) if name.startswith(TOP)]
        missing = [name for name in here if not (path.parent / name).exists()]
        missing += [name for name in named if not (ROOT / name).exists()]
        # Made by a build, a set-up or a person.
        assert [name for name in missing if name not in {".venv/bin"}] == []

    def test_its_modules_exist(self, path):
        named = re.findall(r"`([\w./]+\.(?:py|bpf\.c|h))`", path.read_text())
        below = path.parent if path.parent not in (ROOT, DOCS) else ROOT
        assert [name for name in named if not (ROOT / name).exists() and not [*below.rglob(name)]] == []

    def test_its_links_lead_somewhere(self, path):
        assert broken_links(path) == []

    @pytest.mark.slow
    def test_its_options_exist(self, path):
        commands = re.findall(r"`koordebpf (\w+) ([^`]*)`", path.read_text())
        for command, arguments in commands:
            usage = koordebpf(f"koordebpf {command} --help").stdout
            assert [option for option in re.findall(r"--[a-z-]+", arguments) if option not in usage] == []


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_README_LINES


def test_a_link_to_no_file_and_to_no_heading_is_found(tmp_path):
    (tmp_path / "other.md").write_text('# What "used" means\n')
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n[a](other.md) [b](other.md#what-used-means) [c](#page) [d](https://example.org/x)\n"
        "[e](none.md) [f](other.md#none) [g](#none)\n```text\n[h](none.md)\n```\n"
    )
    assert broken_links(page) == ["none.md", "other.md#none", "#none"]


def test_the_index_of_the_documentation_names_every_page():
    named = set(re.findall(r"\]\(([\w-]+\.md)\)", (DOCS / "README.md").read_text()))
    assert named == {path.name for path in DOCS.glob("*.md")} - {"README.md"}


def test_the_picture_of_the_demo_is_drawn_from_its_recording():
    folder = DOCS / "eviction"
    draw = "import figure; print(figure.draw(), end='')"
    drawn = subprocess.run(
        [sys.executable, "-c", draw],
        cwd=folder, env=os.environ | {"PYTHONPATH": f"{folder}:{ROOT}"}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert drawn == (folder / "eviction.svg").read_text()


def test_every_target_of_the_makefile_is_in_its_help():
    shown = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {line.split()[1] for line in shown.splitlines()} == make_targets()
    declared = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert declared is not None
    assert set(declared[1].split()) == make_targets()


def test_the_table_of_strategies_is_what_the_command_prints():
    printed = koordebpf("koordebpf config strategies").stdout
    assert f"```text\n{printed}```" in (DOCS / "strategies.md").read_text()
