"""The node in a guest: one saved state for all tests, a restored node for each file, or for one test."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import slow
from tests.cluster.agent_image import obtain_image, uncompress_layers
from tests.cluster.api import Object
from tests.cluster.binaries import Binaries, say_line
from tests.cluster.binaries import obtain as obtain_binaries
from tests.cluster.objects import pod as pod_object
from tests.node import crio, image, state
from tests.node.agent import GuestAgent
from tests.node.guest import Machine
from tests.node.image import CHOSEN, DEFAULT, SUITES, Image, Suite
from tests.node.network import enter_own_network
from tests.node.node import GuestNode
from tests.node.pods import SLEEP
from tests.node.proved import gathered, table
from tests.node.state import Saved

# A boot takes minutes, and each test that is tried again would ask for one: after two that failed all tests fail.
_BOOTS = 2
_unsaved: list[str] = []  # why no node was saved, by boot
_MODES = {"observe": "--dry-run", "enforce": "--enforce"}


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
    """Mark each as slow, because an emulated CPU is five to ten times slower."""
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
def suite() -> Suite:
    """The release of Debian that the node has: `make test-node SUITE=bookworm` is not the default one."""
    return SUITES[os.environ.get(CHOSEN, DEFAULT)]


@pytest.fixture(scope="session")
def node_image(suite: Suite) -> Image:
    return image.obtain(suite, say_line)


@pytest.fixture(scope="session")
def binaries() -> Binaries:
    return obtain_binaries(say_line)


@pytest.fixture(scope="session")
def agent_image() -> Path:
    """The agent's image, as an archive, of this checkout."""
    packed = obtain_image(say_line)
    plain = packed.with_name(f"plain-{packed.name}")
    if not plain.exists():
        for older in packed.parent.glob("plain-*"):
            older.unlink()
        unfinished = plain.with_suffix(".unfinished")
        uncompress_layers(packed, unfinished)
        unfinished.rename(plain)
    return plain


@pytest.fixture(scope="session")
def crio_programs() -> Path:
    """CRI-O, compiled."""
    return crio.obtain(say_line)


@pytest.fixture(scope="session")
def own_network(request: pytest.FixtureRequest, node_image: Image, binaries: Binaries) -> None:
    """Whatever is downloaded is there, and from now on nothing leaves this machine."""
    tests = [item for item in request.session.items if isinstance(item, pytest.Function)]
    for name in ("agent_image", "crio_programs"):
        if any(name in test.fixturenames for test in tests):
            request.getfixturevalue(name)
    enter_own_network()


@pytest.fixture(scope="session")
def saved_node(node_image: Image, binaries: Binaries, own_network: None) -> Iterator[Saved]:
    """A saved node with its pods: `web` is LS, `batch` and the idle `hog` are BE."""
    if len(_unsaved) >= _BOOTS:
        pytest.fail(f"no node was saved in {len(_unsaved)} boots: {_unsaved[-1]}")
    work = Path(tempfile.mkdtemp(dir="/var/tmp", prefix="koordebpf-node-"))
    try:
        try:
            saved = state.obtain(node_image, binaries, Machine(), work, say_line)
        except BaseException as error:  # pytest-timeout's is no Exception
            _unsaved.append(f"{type(error).__name__}: {error}")
            raise
        yield saved
    finally:
        shutil.rmtree(work)


def _restored(saved: Saved) -> Iterator[GuestNode]:
    folder = Path(tempfile.mkdtemp(dir=saved.folder, prefix="run-"))
    node = GuestNode.restored(saved, folder)
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


@pytest.fixture
def pod(node: GuestNode) -> Callable[..., Object]:
    """Start a pod on the test's node, and return it once it runs: `pod("more", qos="LS", load=HOG)`."""

    def add(
        name: str, qos: str = "BE", priority: str = "koord-batch", load: Sequence[str] = SLEEP, **more: Any
    ) -> Object:
        return node.add(pod_object(name, node.name, *load, qos=qos, priority=priority, **more))

    return add


@pytest.fixture
def agent(node: GuestNode) -> Iterator[Callable[..., GuestAgent]]:
    """Start the checkout's agent on the test's node: `agent("enforce", "--executor", "cgroup")`.

    What the test has not stopped is stopped after it, and may leave nothing.
    """
    started: list[GuestAgent] = []

    def start(mode: str, *arguments: str) -> GuestAgent:
        started.append(node.agent(_MODES[mode], *arguments))
        return started[-1]

    yield start
    for each in started:
        each.stop()


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Keep what a test has measured, for the table at the end (proved.py)."""
    return lambda text: request.node.user_properties.append(("figure", text))
