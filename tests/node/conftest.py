"""The node in a guest: one saved state for all tests, a restored node for each file, or for one test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests import slow
from tests.cluster.agent_image import obtain_image
from tests.cluster.binaries import Binaries, say_line
from tests.cluster.binaries import obtain as obtain_binaries
from tests.node import image, state
from tests.node.guest import Machine
from tests.node.image import SUITES, Image
from tests.node.network import enter_own_network
from tests.node.node import GuestNode
from tests.node.proved import gathered, table
from tests.node.state import Saved


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to a failure what the node says; afterwards it is gone."""
    report = yield
    if report.when == "call" and report.failed:
        for node in getattr(item, "funcargs", {}).values():
            if isinstance(node, GuestNode):
                report.sections.append((f"node {node.name}", node.diagnostics()))
    return report


@pytest.hookimpl(tryfirst=True)  # before those that are marked are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each takes long: an emulated CPU is five to ten times slower."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(slow.MARK)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was proved, as docs/node.md has it."""
    reports = [each for each in terminalreporter.getreports("passed") if each.nodeid.startswith("tests/node/")]
    if reports:
        passed = [(each.nodeid, dict(each.user_properties)) for each in reports if each.when == "call"]
        terminalreporter.write_line(table(gathered(passed)))


@pytest.fixture(scope="session")
def node_image() -> Image:
    return image.obtain(SUITES["trixie"], say_line)


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    return obtain_binaries(say_line)


@pytest.fixture(scope="session")
def agent_image() -> Path:
    """The agent's image, as an archive, of this checkout."""
    return obtain_image(say_line)


@pytest.fixture(scope="session")
def own_network(request: pytest.FixtureRequest, node_image: Image, binaries: Binaries) -> None:
    """Whatever is downloaded is there, and from now on nothing leaves this machine."""
    if any("agent_image" in getattr(item, "fixturenames", ()) for item in request.session.items):
        request.getfixturevalue("agent_image")
    enter_own_network()


@pytest.fixture(scope="session")
def saved_node(node_image: Image, binaries: Binaries, own_network: None) -> Iterator[Saved]:
    """A saved node with its pods: `web` is LS, `batch` and the idle `hog` are BE."""
    work = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="koordebpf-node-"))
    try:
        yield state.obtain(node_image, binaries, Machine(), work, say_line)
    finally:
        shutil.rmtree(work)


def _restored(saved: Saved) -> Iterator[GuestNode]:
    folder = Path(tempfile.mkdtemp(dir=saved.folder, prefix="run-"))
    node = GuestNode(saved, folder)
    try:
        yield node
    finally:
        node.close()
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def shared_node(saved_node: Saved) -> Iterator[GuestNode]:
    """A node for the tests of one file, which leave it as it was."""
    yield from _restored(saved_node)


@pytest.fixture
def node(saved_node: Saved) -> Iterator[GuestNode]:
    """A node of the test's own."""
    yield from _restored(saved_node)
