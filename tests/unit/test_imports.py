"""The graph of imports: which test modules reach a changed file, by which of Python's ways to import."""

from __future__ import annotations

import ast
from collections.abc import Mapping

import pytest

from tests import changed, imports

CLI = {
    "koordebpf/__init__.py": "",
    "koordebpf/__main__.py": "from koordebpf.cli import main\n",
    "koordebpf/cli/__init__.py": "import importlib\n",
    "koordebpf/cli/run.py": "from koordebpf.agent.run import serve\n",
    "koordebpf/cli/plan/__init__.py": "from koordebpf.cli.plan.command import plan\n",
    "koordebpf/cli/plan/command.py": "",
    "koordebpf/agent/run.py": "",
}
AGENT = "koordebpf/agent/run.py"
TEST = "tests/unit/test_one.py"


def distances(of: str, sources: Mapping[str, str]) -> Mapping[str, int]:
    return imports.importers(imports.graph({**CLI, **sources}), [of])


@pytest.mark.parametrize(
    ("text", "distance"),
    [
        ("import koordebpf.agent.run", 1),
        ("import koordebpf.agent.run as agent", 1),
        ("from koordebpf.agent import run", 1),
        ("from koordebpf.agent.run import serve", 1),
        ("from koordebpf.agent.run import (\n    serve,  # and no other\n)", 1),
        ("def test() -> None:\n    from koordebpf.agent.run import serve\n", 1),
        ("if TYPE_CHECKING:\n    from koordebpf.agent.run import serve\n", 1),
        ('CODE = "import sys; from koordebpf.agent.run import serve; serve()"', 1),
        ("from koordebpf.cli.run import run", 2),
        ("from koordebpf.cli import main", 2),
        ('subprocess.run([sys.executable, "-m", "koordebpf", "run"])', 2),
        ('subprocess.run([sys.executable, "-m", "koordebpf", *arguments])', 2),
        ("#!/bin/sh\nexec python -m koordebpf run", 2),
    ],
)
def test_it_reaches_the_agent(text: str, distance: int) -> None:
    assert distances(AGENT, {TEST: text}) == {TEST: distance}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "from koordebpf.cli.plan.command import plan",
        "import koordebpf.cli",
        'subprocess.run([sys.executable, "-m", "koordebpf", "plan", "-"])',
        "# from the agent import what it has",
    ],
)
def test_it_does_not_reach_the_agent(text: str) -> None:
    assert distances(AGENT, {TEST: text}) == {}


def test_a_changed_package_is_reached_by_what_imports_from_below_it() -> None:
    assert distances("koordebpf/__init__.py", {TEST: "from koordebpf.agent.run import serve"}) == {TEST: 1}


def test_who_imports_a_name_from_its_package_imports_the_module_that_has_it() -> None:
    assert distances("koordebpf/cli/plan/command.py", {TEST: "from koordebpf.cli.plan import plan"}) == {TEST: 1}


@pytest.mark.parametrize("started", ['"-m", "koordebpf", "plan"', '"-m", "koordebpf"'])
def test_a_started_command_is_reached_behind_its_package(started: str) -> None:
    assert TEST in distances("koordebpf/cli/plan/command.py", {TEST: f"subprocess.run([python, {started}])"})


def test_a_conftest_counts_for_its_folder_and_below() -> None:
    tests = {f"tests/{name}.py": "" for name in ("unit/test_one", "unit/act/test_two", "host/test_three")}
    found = distances(AGENT, {"tests/unit/conftest.py": "import koordebpf.agent.run", **tests})
    assert found == {"tests/unit/test_one.py": 2, "tests/unit/act/test_two.py": 2}


def test_a_relative_import_is_of_the_package() -> None:
    rig = {"tests/vm/rig.py": "from koordebpf.agent import run", "tests/vm/__init__.py": ""}
    assert distances(AGENT, {**rig, "tests/vm/test_one.py": "from .rig import start"}) == {"tests/vm/test_one.py": 2}
    assert distances(AGENT, {**rig, "tests/vm/test_one.py": "from . import rig"}) == {"tests/vm/test_one.py": 2}


def test_a_script_is_reached_by_who_starts_it_by_its_name() -> None:
    sources = {"tests/unit/dying.py": "import koordebpf.agent.run", TEST: 'START = [python, FOLDER / "dying.py"]'}
    assert distances(AGENT, sources) == {TEST: 2}


@pytest.mark.parametrize("rig", imports.STARTERS)
def test_a_rig_that_starts_an_agent_reaches_it(rig: str) -> None:
    assert (imports.ROOT / rig).exists()
    name = imports.graph({**CLI, rig: ""})
    assert "koordebpf/cli/run.py" in name[rig]


def test_a_module_that_is_gone_is_reached() -> None:
    assert distances("koordebpf/gone.py", {"koordebpf/gone.py": "", TEST: "from koordebpf import gone"}) == {TEST: 1}


def test_every_import_of_this_repository_is_found() -> None:
    sources = imports.sources()
    folders = ("koordebpf/agent", "koordebpf/strategies", "tests/host", ".ci")
    some = {path: text for path, text in sources.items() if path.startswith(folders)}
    assert len(some) > 200
    for path, text in some.items():
        nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
        named = {each.asname or each.name for node in nodes for each in node.names}
        assert named <= {name for name, _ in imports._names(path, text)}, path


def test_a_live_agent_reaches_what_the_agent_runs() -> None:
    found = imports.importers(imports.graph(imports.sources()), ["koordebpf/agent/tick.py"])
    assert {path.split("/")[1] for path in found} >= {"cluster", "contract", "host", "trees", "unit"}


def test_what_every_test_loads_reaches_nothing_of_the_package() -> None:
    found = imports.graph(imports.sources())
    loaded, waiting = set(), ["tests/conftest.py"]
    while waiting:
        waiting += found[waiting.pop()] - loaded
        loaded |= set(waiting)
    assert not {path for path in loaded if path.startswith("koordebpf/")}


SOURCES = {**CLI, "tests/unit/test_agent.py": "import koordebpf.agent.run", "tests/unit/test_else.py": ""}


class TestOwners:
    def selected(self, *paths: str) -> list[str]:
        return changed.selected(paths, SOURCES)

    def test_python_owns_what_reaches_it(self) -> None:
        assert self.selected(AGENT) == ["tests/unit/test_agent.py"]

    def test_a_test_module_owns_itself(self) -> None:
        assert self.selected("tests/unit/test_else.py") == ["tests/unit/test_else.py"]

    def test_a_file_beside_modules_owns_what_reaches_these(self) -> None:
        assert self.selected("koordebpf/agent/assets/page.js") == ["tests/unit/test_agent.py"]

    def test_data_of_tests_own_their_folder(self) -> None:
        golden = {"tests/golden/test_one.py": "", "tests/golden/test_two.py": ""}
        assert changed.selected(["tests/golden/frames/one.json"], SOURCES | golden) == sorted(golden)

    def test_what_all_tests_need_owns_them_all(self) -> None:
        assert self.selected("pyproject.toml") == ["tests/unit/test_agent.py", "tests/unit/test_else.py"]

    def test_a_page_owns_the_rules_and_the_site(self) -> None:
        owned = {"tests/rules/test_docs.py": "", "tests/contract/test_site.py": ""}
        others = {"tests/contract/test_docs.py": "", "tests/contract/test_site_map.py": ""}
        assert changed.selected(["docs/tick.md"], SOURCES | owned | others) == sorted(owned)

    def test_programs_of_the_kernel_own_host(self) -> None:
        host = {"tests/host/test_one.py": "", "tests/golden/test_records.py": ""}
        assert changed.selected(["bpf/oom.bpf.c"], SOURCES | host) == sorted(host)
