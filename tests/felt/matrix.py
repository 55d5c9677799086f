"""Runs cells in turn on one node, so that what drifts falls on every way alike."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from koordebpf.kernel.io.closing import Closing
from koordebpf.units import GIB
from tests.felt.cells import Found, percentiles, served
from tests.felt.disk import NodeDisk
from tests.felt.load.app import App
from tests.felt.load.apps import APPS
from tests.felt.load.hogs import BATCH, NONE, OF_MEMORY, command
from tests.felt.node import FULL, FeltNode, Scale
from tests.felt.ways import DEFAULT, KUBELET, NOTHING, Agent, Kubelet, Way, node_slo

NODE_BYTES = 2 * GIB
_DISK_MIB = 6144
_LEAD_S = 0.5  # a hog runs for so long before the first request
_KUBELET_STEP_S = 2.0  # by so much later it first looks in the next repeat


class Plan:
    """What to run: the cells of one repeat are every hog in every way that can matter for it."""

    def __init__(self, app: str, hogs: Sequence[str], ways: Sequence[Way]) -> None:
        self.app, self.hogs, self.ways = app, hogs, ways

    def cells(self) -> Iterator[tuple[Way, list[str]]]:
        """Yield each way with its hogs; undisturbed comes with the first, and with an agent."""
        for way in self.ways:
            # Neither the kubelet nor the agent's defaults do anything about the others on two CPUs.
            hogs = [each for each in self.hogs if way not in (KUBELET, DEFAULT) or each in OF_MEMORY]
            yield way, [*([NONE] if way == NOTHING or way.agent else []), *hogs]

    def count(self) -> int:
        """Return how many cells a repeat has."""
        return sum(len(hogs) for _, hogs in self.cells())


class Matrix(Closing):
    """A node with a disk and one application in it."""

    def __init__(self, app: str, seconds: float, say: Callable[[str], None], scale: Scale = FULL) -> None:
        self._stack = contextlib.ExitStack()
        self._seconds, self._say, self._scale = seconds, say, scale
        self.agent_log = ""
        try:
            self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="koordebpf-felt-")))
            self._disk = self._stack.enter_context(NodeDisk(self._folder, _DISK_MIB))
            self.node = self._stack.enter_context(FeltNode(int(NODE_BYTES * scale.memory)))
            (self._disk.mount / "hog").mkdir()
            self.app: App = APPS[app](self.node, self._disk.mount, scale)
        except BaseException:
            self._stack.close()
            raise
        self._manifest = self._folder / "pods.json"
        self._number = 0

    def run(self, plan: Plan, repeats: int) -> Iterator[Found]:
        """Yield what each cell gives, repeat after repeat."""
        for repeat in range(repeats):
            for way, hogs in plan.cells():
                yield from self._way(way, hogs, repeat)

    def _way(self, way: Way, hogs: Sequence[str], repeat: int) -> Iterator[Found]:
        with contextlib.ExitStack() as stack:
            agent = None
            if way.agent:
                self._write(way)
                agent = stack.enter_context(Agent(self.node, way, self._manifest, self._folder))
            for hog in hogs:
                yield self._cell(way, hog, repeat, agent)
            if agent is not None:
                self.agent_log = agent.log()

    def _cell(self, way: Way, hog: str, repeat: int, agent: Agent | None) -> Found:
        self.app.ensure()
        self._number += 1
        name = f"hog-{self._number}"
        container = self.node.add_be(name, BATCH.scaled(self._scale.memory))
        self._write(way)
        with contextlib.ExitStack() as stack:
            stack.callback(self._clear, name)
            if agent is not None:
                time.sleep(1.2)  # a new pod has its limits after 0.7 s
            evicted = agent.evictions if agent is not None else 0
            kills = self.node.oom_kills(self.app.container)
            if hog != NONE:
                self.node.start(container, command(hog, self._disk.mount / "hog", self._scale.memory))
                time.sleep(_LEAD_S)
            kubelet = None
            if way.kubelet:
                kubelet = stack.enter_context(Kubelet(self.node, container, 1 + repeat * _KUBELET_STEP_S % 10))
            cpu, psi, waited = self.node.cpu_s(container), self._stalls(), self.node.waited_ms(self.app.container)
            began = time.monotonic()
            got = self.app.measure(self._seconds)
            if self.app.stuck:
                self._say(f"the client of {self.app.name} did not end: {self.app.stuck}")
                self.app.stuck = ""
            lasted = time.monotonic() - began
            p50, p99, p999, worst = percentiles(got.took_ms)
            found = Found(
                self.app.name, hog, way.name, repeat, len(got.took_ms), p50, p99, p999, worst,
                served=served(got.took_ms, got.lost, self.app.rate, self._seconds),
                lost=got.lost,
                ls_kills=self.node.oom_kills(self.app.container) - kills,
                be_kills=self.node.oom_kills(container),
                evictions=(agent.evictions - evicted if agent else 0) + (kubelet.evictions if kubelet else 0),
                be_cpu=max(self.node.cpu_s(container) - cpu, 0) / lasted,
                waited_ms=max(self.node.waited_ms(self.app.container) - waited, 0) / lasted,
                psi={key: round(100 * (now - psi[key]) / lasted / 1e6, 2) for key, now in self._stalls().items()},
            )  # fmt: skip
        self._say(
            f"{found.app} {hog} {way.name} {repeat}: p99.9 {p999:.2f} max {worst:.1f} ms, {found.served:.0f}/s,"
            f" kills {found.ls_kills} {found.be_kills}, evicted {found.evictions}, hog {found.be_cpu:.2f} CPUs,"
            f" waited {found.waited_ms:.1f} ms/s"
        )
        return found

    # Of the application's cgroup in µs, where the kernel counts them (cgroup v2).
    def _stalls(self) -> dict[str, int]:
        found = {}
        for name in ("cpu", "memory", "io"):
            with contextlib.suppress(OSError):
                line = (self.app.container / f"{name}.pressure").read_text().splitlines()[0]
                found[name] = int(line.rpartition("=")[2])
        return found

    def _clear(self, name: str) -> None:
        self.node.remove(name)
        for path in (self._disk.mount / "hog").iterdir():
            if path.suffix != ".class":
                _remove_tree(path)

    def _write(self, way: Way) -> None:
        self.node.write_manifest(self._manifest, node_slo(way, self._disk.path))

    def close(self) -> None:
        self._stack.close()


def _remove_tree(path: Path) -> None:
    for below in path.rglob("*"):
        if not below.is_dir():
            below.unlink(missing_ok=True)
    for below in sorted(path.rglob("*"), reverse=True):
        below.rmdir()
    path.rmdir() if path.is_dir() else path.unlink()
