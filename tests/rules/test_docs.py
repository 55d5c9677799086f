"""README and docs/: their commands run, their transcripts are what the program prints, and what they name exists."""

from __future__ import annotations

import functools
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from koordebpf.cli import root
from koordebpf.cli.man import exit_code_table
from koordebpf.decision.what_if.week import DEFINITIONS
from koordebpf.demo.screen import Screen
from koordebpf.demo.story import LIMIT_BYTES, STORIES
from tests.rules.offenders import report
from tests.rules.pages import DOCS, FILES, PAGES, ROOT, name_of
from tests.support.transcript import of_demo_page

TOP = ("bpf/", "koordebpf/", "tests/", "deploy/", "docs/", "vagrant/", ".ci/")
MAX_README_LINES = 150


def found(pattern: str, path: Path) -> Iterator[tuple[str, str]]:
    """Yield where a page has what a pattern finds, and what its group is."""
    text = path.read_text()
    for each in re.finditer(pattern, text, re.MULTILINE | re.DOTALL):
        yield f"{name_of(path)}:{text.count(chr(10), 0, each.start(1)) + 1}", each[1]


def blocks(language: str) -> list[tuple[str, str]]:
    return [each for path in PAGES for each in found(rf"```{language}\n(.*?)```", path)]


def shell_commands() -> list[tuple[str, str]]:
    lines = [(at, line.split("#")[0].strip()) for at, block in blocks("sh") for line in block.splitlines()]
    return [(at, line) for at, line in lines if line]


def koordebpf(command: str) -> subprocess.CompletedProcess[str]:
    name, *arguments = shlex.split(command)
    assert name == "koordebpf"
    return subprocess.run(
        [sys.executable, "-m", "koordebpf", *arguments],
        cwd=ROOT, env=os.environ | {"COLUMNS": "80"}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@functools.cache
def anchors(path: Path) -> frozenset[str]:
    """Return what a link may name after `#`, as GitHub makes it of each heading."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return frozenset(re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings)


def broken_links(path: Path) -> Iterator[str]:
    """Yield the lines of a page with links that lead to no file, or to no heading of one."""
    is_code = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        is_code ^= line.startswith("```")
        for link in () if is_code else re.findall(r"\]\((?!https?:)([^)\s]+)", line):
            name, _, anchor = link.partition("#")
            target = path.parent / name if name else path
            if not target.exists() or (anchor and anchor not in anchors(target)):
                yield f"{number}: {link}"


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))


# Those that only print. `make …` would run this very test again.
def test_commands_of_pages_run() -> None:
    commands = [(at, line) for at, line in shell_commands() if line.startswith("koordebpf ")]
    assert commands
    wrong = []
    for at, line in commands:
        done = koordebpf(line)
        if done.returncode or done.stderr or not done.stdout:
            wrong.append(f"{at}: {line}: {done.stderr.strip() or 'prints nothing'}")
    report(wrong, "these commands must end with 0, print something, and nothing on standard error")


def test_transcripts_are_what_the_program_prints() -> None:
    transcripts = blocks("console")
    assert transcripts
    wrong = []
    for at, text in transcripts:
        command, _, expected = text.removeprefix("$ ").partition("\n")
        if (printed := koordebpf(command).stdout) != expected:
            wrong.append(f"{at}: {command}\n{printed}")
    report(wrong, "these pages must show what the command prints now")


def test_the_transcript_of_the_demo_begins_as_the_demo_does():
    """The whole of it is compared where the demo runs: tests/host/test_demo.py."""
    out = io.StringIO()
    Screen(out).begin(STORIES["hog"], LIMIT_BYTES)
    assert of_demo_page()[1].head == out.getvalue()


def test_every_command_of_a_page_is_known() -> None:
    commands = shell_commands()
    assert commands
    # Those of kubectl and helm need a cluster, docker its engine and vagrant a hypervisor; the files that they name are
    # looked for below.
    known = {"koordebpf", "make", "kubectl", "helm", "docker", "vagrant"}
    unknown = [f"{at}: {line}" for at, line in commands if line.split()[0] not in known]
    report(unknown, f"a page's commands must be of {', '.join(sorted(known))}")


def test_make_targets_of_pages_exist() -> None:
    named = [each for path in PAGES for each in found(r"(?:`|^)make ([a-z][a-z-]*)", path)]
    assert len(named) > 30
    report((f"{at}: make {name}" for at, name in named if name not in make_targets()), "the Makefile must have these")


def test_paths_of_pages_exist() -> None:
    named = [(path, *each) for path in PAGES for each in found(r"[`\s]((?:[\w.-]+/)+[\w.-]*)", path)]
    missing = [f"{at}: {name}" for _, at, name in named if name.startswith(TOP) and not (ROOT / name).exists()]
    below = [(path, *each) for path in PAGES for each in found(r"^\| \[?`([\w.-]+(?:/|\.c))`", path)]
    missing += [f"{at}: {name}" for path, at, name in below if not (path.parent / name).exists()]
    report(missing, "these files and folders are not there: write where they are now")


def test_modules_of_pages_exist() -> None:
    missing = []
    for path in PAGES:
        below = path.parent if path.parent not in (ROOT, DOCS) else ROOT
        named = found(r"`([\w./]+\.(?:py|bpf\.c|h))`", path)
        missing += [f"{at}: {name}" for at, name in named if not (ROOT / name).exists() and not has_file(below, name)]
    report(missing, "these modules are not there: write where they are now")


def has_file(folder: Path, name: str) -> bool:
    start = "" if folder == ROOT else f"{name_of(folder)}/"
    return any(each.startswith(start) and f"/{each}".endswith(f"/{name}") for each in FILES)


def test_links_of_pages_lead_somewhere() -> None:
    broken = [f"{name_of(path)}:{each}" for path in PAGES for each in broken_links(path)]
    report(broken, "these links lead to no file, or to no heading of it")


@functools.cache
def options_of(line: str) -> frozenset[str]:
    """Return the options of the command that a line calls, and of the groups that it is in."""
    command: click.Command | None = root()
    options = {"--help"}
    for word in line.split():
        command = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
        if command is None:
            break
        options |= {one for each in command.params for one in (*each.opts, *each.secondary_opts)}
    return frozenset(options)


def test_options_of_pages_exist() -> None:
    named = [each for path in PAGES for each in found(r"[`|] ?koordebpf (\w+ [^`|\n]*)", path)]
    assert len(named) > 50
    unknown = []
    for at, line in named:
        options = options_of(line.partition(" -")[0])
        unknown += [f"{at}: {line}: {one}" for one in re.findall(r"(?<!\S)--[a-z-]+", line) if one not in options]
    report(unknown, "these commands have no such option")


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= MAX_README_LINES


def test_a_link_to_no_file_and_to_no_heading_is_found(tmp_path):
    (tmp_path / "other.md").write_text('# What "used" means\n')
    page = tmp_path / "page.md"
    page.write_text(
        "# Page\n[a](other.md) [b](other.md#what-used-means) [c](#page) [d](https://example.org/x)\n"
        "[e](none.md) [f](other.md#none) [g](#none)\n```text\n[h](none.md)\n```\n"
    )
    assert list(broken_links(page)) == ["3: none.md", "3: other.md#none", "3: #none"]


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


def test_the_picture_of_the_packages_is_drawn_from_their_imports():
    folder = DOCS / "architecture"
    draw = "import picture; print(picture.draw(), end='')"
    drawn = subprocess.run(
        [sys.executable, "-c", draw],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(folder)}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert drawn == (folder / "picture.svg").read_text(), (
        "run python docs/architecture/picture.py and commit picture.svg"
    )


def test_every_target_of_the_makefile_is_in_its_help():
    shown = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {line.split()[1] for line in shown.splitlines()} == make_targets()
    declared = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert declared is not None
    assert set(declared[1].split()) == make_targets()


def test_the_table_of_strategies_is_what_the_command_prints():
    printed = koordebpf("koordebpf config strategies").stdout
    assert f"```text\n{printed}```" in (DOCS / "strategies.md").read_text()


def test_the_table_of_exit_codes_is_that_of_the_commands() -> None:
    assert exit_code_table() in (DOCS / "commands/README.md").read_text()


def test_each_count_of_shadow_mode_is_defined() -> None:
    page = DOCS / "what-if.md"
    lines = [f"| {word.replace('_', ' ')} | {text} |" for word, text in DEFINITIONS.items()]
    missing = [line for line in lines if f"{line}\n" not in page.read_text()]
    report(missing, f"{name_of(page)} must have these lines, which decision/what_if/week.py makes")
