"""The demo's stories, and one run of a story: real cgroups, real processes, the real agent.

Tells what happens as it happens, and returns what was measured. Judges nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO, NoReturn

import msgspec

import koordebpf
from koordebpf.collect.memory.files import parts_of
from koordebpf.collect.scope import open_scope, signal_request
from koordebpf.demo.node import DemoNode, NodeCgroup, demo_node, write_agent_config
from koordebpf.demo.output import Event, StoryOutput, Tell
from koordebpf.demo.verdict import FULL_PERCENT, Crossing, Kind, PodEnd, PodStalls, StoryFacts, Usage
from koordebpf.errors import CgroupGone, KoordebpfError, SupportError
from koordebpf.events.layout import check_layout, decode_stall
from koordebpf.kernel.backends.co_re import KernelSignals
from koordebpf.kernel.bpf.programs import object_path
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory, MemoryHierarchy, cgroup_id, find_memory_hierarchy
from koordebpf.kernel.io.closing import Closing
from koordebpf.kernel.proc.meminfo import Meminfo
from koordebpf.kernel.signals import SUMS_ONLY_NS, Backend
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy, threshold_bytes
from koordebpf.state.measured import MemoryParts
from koordebpf.state.stalls.sums import ScanSums, cgroup_used_bytes
from koordebpf.units import GIB, MIB, NS_PER_MS, NS_PER_S, PAGE_BYTES, format_bytes

LIMIT_BYTES = GIB
THRESHOLD_PERCENT = 80
LOWER_PERCENT = 75
NEEDS_BYTES = 2 * GIB
_QUIET_S = 3.0  # the LS pod's baseline
PR_SET_PDEATHSIG = 1  # include/uapi/linux/prctl.h
_libc = ctypes.CDLL(None, use_errno=True)
_NO_PODS = 0  # version of what says whose the cgroups are: nothing, always
_AFTER_NS = 2 * NS_PER_S  # who is left shows that it runs on
# How long something may take at most. Why so long: an emulated machine needs 20 s to load the programs.
_START_NS = 90 * NS_PER_S
_HOG_NS = 60 * NS_PER_S
_FLOOD_NS = 60 * NS_PER_S
_STOP_NS = 15 * NS_PER_S
_TROUBLE_NS = 5 * NS_PER_S
_PACE_NS = NS_PER_S  # of the lines with the node's usage
_GROWING_PACE_NS = 250 * NS_PER_MS
_WORKER_S = "600"
_FILES = "/var/tmp"  # a disk's file system, where /tmp may be memory


class DemoPod(msgspec.Struct, frozen=True):
    """One pod of a story: what it is, and the worker in it."""

    name: str
    is_be: bool
    priority: int
    says: str
    worker: tuple[str, ...]
    limit_bytes: int | None = None


class Story(msgspec.Struct, frozen=True):
    """What is going to happen. `aggressor` is the pod that makes the trouble."""

    kind: Kind
    title: str
    pods: tuple[DemoPod, ...]
    aggressor: str
    ls_pod: str


_WEB = DemoPod("web", False, 9500, "works all the time and times every round", ("ls", "--mib", "100"))
_TRAIN = DemoPod("train", True, 5500, "grows to 250 MiB", ("hog", "--mib", "250", "--mib-per-s", "80"))

STORIES: Mapping[Kind, Story] = {
    "hog": Story(
        "hog",
        "a best-effort pod eats the node",
        (
            _WEB,
            _TRAIN,
            DemoPod(
                "hog", True, 5000, "grows without end, from second 3",
                ("hog", "--mib", "1500", "--mib-per-s", "300", "--wait-s", str(_QUIET_S)),
            ),
        ),
        "hog",
        "web",
    ),
    "page-cache": Story(
        "page-cache",
        "a best-effort pod floods the node with page cache",
        (
            _WEB,
            _TRAIN,
            DemoPod(
                "reader", True, 5000, "reads a file of 3 GiB, from second 3",
                ("page-cache", "--mib", "3000", "--wait-s", str(_QUIET_S)),
            ),
        ),
        "reader",
        "web",
    ),
    "own-limit": Story(
        "own-limit",
        "a best-effort pod thrashes inside its own limit",
        (
            _WEB,
            _TRAIN,
            DemoPod(
                "thrash", True, 5000, "walks 300 MiB, may hold 200 MiB, from second 3",
                ("own-limit", "--mib", "300", "--wait-s", str(_QUIET_S)),
                limit_bytes=200 * MIB,
            ),
        ),
        "thrash",
        "web",
    ),
}  # fmt: skip


class Lines:
    """Complete lines out of a pipe, without waiting."""

    def __init__(self, pipe: IO[bytes]) -> None:
        os.set_blocking(pipe.fileno(), False)
        self._pipe = pipe
        self._rest = b""
        self.is_open = True

    def fileno(self) -> int:
        """Return the pipe's descriptor, to wait on."""
        return self._pipe.fileno()

    def read(self) -> list[bytes]:
        """Return the lines that came since the last call; at the end also what has no newline."""
        parts = [self._rest]
        while self.is_open:
            try:
                part = os.read(self._pipe.fileno(), 1 << 16)
            except BlockingIOError:
                break
            parts.append(part)
            self.is_open = bool(part)
        *lines, self._rest = b"".join(parts).split(b"\n")
        if not self.is_open and self._rest:
            lines, self._rest = [*lines, self._rest], b""
        return lines


class Child(Closing):
    """A Python module of this package, run as a process of its own. `close` ends it."""

    def __init__(self, module: str, *arguments: str, end_signal: signal.Signals) -> None:
        """Start it; `end_signal` is what it gets when the demo dies first."""
        # The child finds the package where this process has it; settings in the environment are the user's, not ours.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("KOORDEBPF_")}
        environment["PYTHONPATH"] = str(Path(koordebpf.__file__).parents[1])
        self._popen = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # the terminal's Ctrl-C is the demo's to handle
            preexec_fn=_dies_with_parent(end_signal),  # noqa: PLW1509 - this process has one thread
        )
        assert self._popen.stdout and self._popen.stderr  # both are pipes
        self.out = Lines(self._popen.stdout)
        self.err = Lines(self._popen.stderr)

    @property
    def exit_code(self) -> int | None:
        """Return how it ended, negative for a signal; None while it runs."""
        return self._popen.poll()

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._popen.pid

    def resume(self) -> None:
        """Let it run again after a SIGSTOP."""
        self._popen.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ask it to end."""
        self._popen.terminate()

    def wait(self, seconds: float) -> int | None:
        """Return how it ended; None where it has not by then."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._popen.wait(max(seconds, 0))
        return None

    def close(self) -> None:
        """End it, with SIGKILL where SIGTERM does not, and close its pipes."""
        self.stop()
        if self.wait(10) is None:
            self._popen.kill()
            self._popen.wait()
        for pipe in (self._popen.stdout, self._popen.stderr):
            if pipe:
                pipe.close()


def _dies_with_parent(number: signal.Signals) -> Callable[[], None]:
    parent = os.getpid()

    def ask() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)
        if os.getppid() != parent:  # it died before
            os._exit(1)

    return ask


def open_sums(node: NodeCgroup, hierarchy: MemoryHierarchy) -> KernelSignals:
    """Return programs of their own for a node, to be closed: they sum up its stalls, and send nothing."""
    request = signal_request(open_scope(hierarchy, node.path), SUMS_ONLY_NS)
    return KernelSignals(request, check_layout)


class NodeObserver:
    """Reads the node's usage and its pods' stalls; each sample goes into `crossing`. Owns `signals`."""

    def __init__(self, node: NodeCgroup, signals: Backend, crossing: Crossing) -> None:
        self._node = node
        self._root_id = cgroup_id(node.path)
        self.crossing = crossing
        self._memory = CgroupMemory(node.path, node.version)
        self._pods = {name: CgroupMemory(path, node.version) for name, path in node.pod_paths.items()}
        self._signals = signals
        self._sums: ScanSums | None = None  # of the last sample

    def sample(self) -> Usage:
        """Read the node now. Cost: 30 µs."""
        memory = self._read()
        now = Usage(time.monotonic_ns(), memory.usage_bytes, cgroup_used_bytes(memory))
        self.crossing.push(now)
        return now

    # The LRU lists themselves where the kernel has a cgroup iterator: memory.stat of a cgroup lags by up to 2 s behind
    # what was charged to its children (6.18: flush_memcg_stats_dwork's period), and page cache looks used meanwhile.
    def _read(self) -> MemoryParts:
        slab_reclaimable = None
        if self._node.version == 2 or not self._signals.can_scan:
            stat = self._memory.read()
            slab_reclaimable = stat.slab_reclaimable_bytes
        if self._signals.can_scan:
            rows = self._signals.scan()
            try:
                sums = self._sums = ScanSums(bytes(rows), lambda _: None, PAGE_BYTES, self._sums, _NO_PODS)
            finally:
                rows.release()
            if (memory := sums.all(self._root_id)) is None:
                raise CgroupGone(str(self._node.path))
            return msgspec.structs.replace(memory, slab_reclaimable_bytes=slab_reclaimable)
        return parts_of(stat)

    def pod_usage_bytes(self) -> dict[str, int]:
        """Return each pod's raw usage."""
        return {name: memory.usage_bytes() for name, memory in self._pods.items()}

    def stalls_unseen(self) -> str | None:
        """Return why stalls cannot be seen here; None: they can."""
        missing = [source for source in self._signals.sources if "stalls" in source.signal and not source.works]
        return missing[0].reason if missing else None

    def stalls(self) -> dict[str, PodStalls]:
        """Return what each pod stalled since this object was made, those that did not with zeros."""
        names = self._node.pods_by_cgroup_id()
        sums = {name: PodStalls() for name in self._node.pod_paths}
        for key, value in self._signals.stalls():
            stall = decode_stall(key, value)
            if (name := names.get(stall.cgroup_id)) is None:
                continue
            before = sums[name]
            sums[name] = PodStalls(
                before.node_count + stall.global_.count,
                before.node_ns + stall.global_.total_ns,
                before.limit_count + stall.limit.count,
                before.limit_ns + stall.limit.total_ns,
            )
        return sums

    def close(self) -> None:
        """Detach the programs and close every fd."""
        self._signals.close()
        for memory in (self._memory, *self._pods.values()):
            memory.close()


class Interrupted(KoordebpfError):
    """A signal ended the demo; everything is cleaned up."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by {signal.Signals(number).name}: the demo's pods and cgroups are removed")
        self.number = number


def check_host() -> MemoryHierarchy:
    """Return where the node's cgroup can be made.

    Raises:  SupportError: not root, too little free memory, no memory controller, or no BPF objects.
    """
    if os.geteuid() != 0:
        raise SupportError("demo", "it makes cgroups and loads programs into the kernel", "Run it as root")
    object_path("koordebpf")
    with Meminfo() as meminfo:
        available = meminfo.read().mem_available_bytes
    if available < NEEDS_BYTES:
        raise SupportError(
            "demo",
            f"{format_bytes(available)} of memory are available, it needs {format_bytes(NEEDS_BYTES)}",
            "End something else first",
        )
    return find_memory_hierarchy()


def run_story(story: Story, tell: Tell) -> StoryFacts:
    """Run a story to its end; nothing of it is left afterwards, also when it is interrupted.

    Raises:  SupportError: this host cannot, or the agent did not start. Interrupted: SIGINT, SIGTERM or SIGHUP.
    """
    hierarchy = check_host()
    with (
        _interruptible() as let_pass,
        demo_node(hierarchy.mount_point, hierarchy.version, LIMIT_BYTES) as made,
        contextlib.ExitStack() as stack,
    ):
        try:
            return _Run(story, made, hierarchy, tell, stack).run()
        finally:
            let_pass()


# A signal ends the story until it is let pass: cleaning up takes a moment, and a second Ctrl-C must not spoil it.
@contextlib.contextmanager
def _interruptible() -> Iterator[Callable[[], None]]:
    def let_pass() -> None:
        for number in before:
            signal.signal(number, signal.SIG_IGN)

    def interrupt(number: int, _frame: FrameType | None) -> NoReturn:
        let_pass()
        raise Interrupted(number)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield let_pass
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def _never() -> bool:
    return False


class _Run:
    # One run: its processes, and what they have said so far.
    def __init__(
        self,
        story: Story,
        made: DemoNode,
        hierarchy: MemoryHierarchy,
        tell: Tell,
        stack: contextlib.ExitStack,
    ) -> None:
        self._story = story
        node = self._node = made.node
        self._tell = tell
        self._containers = {
            pod.name: node.add_pod(pod.name, be=pod.is_be, priority=pod.priority, limit_bytes=pod.limit_bytes)[0]
            for pod in story.pods
        }
        manifest = node.write_manifest(made.files / "pods.json", THRESHOLD_PERCENT, LOWER_PERCENT)
        config = write_agent_config(made.files / "config.yaml")
        strategy = ResourceThresholdStrategy(
            enable=True, memoryEvictThresholdPercent=THRESHOLD_PERCENT, memoryEvictLowerPercent=LOWER_PERCENT
        )
        self._threshold_bytes = threshold_bytes(strategy, LIMIT_BYTES) or LIMIT_BYTES
        crossing = Crossing(self._threshold_bytes, LIMIT_BYTES * LOWER_PERCENT // 100)
        self._observer = NodeObserver(node, open_sums(node, hierarchy), crossing)
        stack.callback(self._observer.close)
        self._stack = stack
        self._agent = stack.enter_context(
            Child(
                "koordebpf", "run", "--node-cgroup", str(node.path), "--pods", str(manifest), "--executor", "cgroup",
                "--enforce", "--run-dir", str(made.run_dir), "--audit", "-", "--listen", "", "--log-format", "json",
                "--recorder-folder", "none", "--config", str(config),
                end_signal=signal.SIGTERM,
            )
        )  # fmt: skip
        self._workers: dict[str, Child] = {}
        self._poll = select.poll()
        self._readers: dict[int, tuple[Lines, Callable[[bytes], None]]] = {}
        self._output = StoryOutput(story.aggressor, crossing, tell)
        self._listen(self._agent.out, self._output.add_audit_line)
        self._listen(self._agent.err, self._output.add_agent_line)
        self._next_usage_ns = 0
        self._is_on_stage = False  # the pods run

    def run(self) -> StoryFacts:
        self._start_agent()
        self._start_workers()
        aggressor = self._workers[self._story.aggressor]
        self._until(lambda: self._output.began_ns is not None or aggressor.exit_code is not None, _START_NS)
        match self._story.kind:
            case "hog":
                self._until(lambda: bool(self._output.evictions), _HOG_NS)
                self._until(_never, _AFTER_NS)
            case "page-cache":
                self._until(
                    lambda: self._observer.crossing.peak_usage_bytes * 100 >= LIMIT_BYTES * FULL_PERCENT, _FLOOD_NS
                )
                self._until(_never, _TROUBLE_NS)
            case "own-limit":
                self._until(_never, _TROUBLE_NS)
        end_ns = time.monotonic_ns()
        pods = self._pods()
        oom_kills = self._node.oom_kills()
        self._stop()
        exit_code = self._agent.exit_code
        quiet, trouble, above = self._output.rounds_around(end_ns)
        return StoryFacts(
            kind=self._story.kind,
            limit_bytes=LIMIT_BYTES,
            threshold_bytes=self._threshold_bytes,
            began_ns=self._output.began_ns,
            crossed_ns=self._output.crossed_ns(),
            below_ns=self._observer.crossing.below_ns,
            peak_usage_bytes=self._observer.crossing.peak_usage_bytes,
            peak_used_bytes=self._observer.crossing.peak_used_bytes,
            evictions=tuple(self._output.evictions),
            oom_kills=oom_kills,
            pods=pods,
            aggressor=self._story.aggressor,
            ls_pod=self._story.ls_pod,
            quiet=quiet,
            trouble=trouble,
            above=above,
            stalls_unseen=self._observer.stalls_unseen(),
            agent_exit_code=exit_code,
            problems=tuple(self._output.problems),
        )

    def _start_agent(self) -> None:
        if not self._until(lambda: self._output.is_watching, _START_NS):
            self._turn()  # its last words
            code = self._agent.exit_code
            silent = f"it said nothing within {_START_NS // NS_PER_S} s"
            reason = self._output.refusal(silent if code is None else f"it ended with exit code {code}")
            raise SupportError("agent", reason, "koordebpf doctor shows what works on this host")

    # The aggressor last, and only when the LS pod works: its first seconds are the LS pod's baseline.
    def _start_workers(self) -> None:
        self._is_on_stage = True
        for pod in sorted(self._story.pods, key=lambda pod: pod.name == self._story.aggressor):
            if pod.name == self._story.aggressor:
                self._until(lambda: self._story.ls_pod in self._output.ready, _START_NS)
            worker = self._stack.enter_context(
                Child(
                    "koordebpf.demo.workers", *pod.worker, "--procs", str(self._containers[pod.name] / "cgroup.procs"),
                    "--directory", _FILES, "--seconds", _WORKER_S, end_signal=signal.SIGKILL,
                )
            )  # fmt: skip
            self._workers[pod.name] = worker
            self._listen(worker.out, partial(self._output.add_worker_line, pod.name))
            self._listen(worker.err, partial(self._output.add_worker_error, pod.name))

    def _listen(self, lines: Lines, take: Callable[[bytes], None]) -> None:
        self._readers[lines.fileno()] = (lines, take)
        self._poll.register(lines, select.POLLIN)

    # An agent that ended has nothing more to show.
    def _until(self, is_so: Callable[[], bool], longest_ns: int) -> bool:
        until_ns = time.monotonic_ns() + longest_ns
        while not is_so() and self._agent.exit_code is None and time.monotonic_ns() < until_ns:
            self._turn()
        return is_so()

    # Read what was said, or a millisecond later the node: the crossing is known to about a millisecond.
    def _turn(self) -> None:
        for fd, _ in self._poll.poll(1):
            lines, take = self._readers[fd]
            for line in lines.read():
                take(line)
            if not lines.is_open:
                self._poll.unregister(fd)
        usage = self._observer.sample()
        if usage.at_ns >= self._next_usage_ns and self._is_on_stage:
            self._next_usage_ns = usage.at_ns + (_GROWING_PACE_NS if self._is_growing else _PACE_NS)
            numbers = {
                "usage_bytes": usage.usage_bytes,
                "used_bytes": usage.used_bytes,
                "pods_usage_bytes": self._observer.pod_usage_bytes(),
            }
            self._tell(Event(usage.at_ns, "usage", numbers=numbers))

    @property
    def _is_growing(self) -> bool:
        return self._story.kind == "hog" and self._output.began_ns is not None and not self._output.evictions

    def _pods(self) -> tuple[PodEnd, ...]:
        stalls = self._observer.stalls() if self._observer.stalls_unseen() is None else {}
        return tuple(
            PodEnd(pod.name, pod.is_be, pod.priority, self._workers[pod.name].exit_code is None, stalls.get(pod.name))
            for pod in self._story.pods
        )

    # The workers first: the agent has seen the whole story then, and what it says of its end is still read.
    def _stop(self) -> None:
        self._is_on_stage = False
        for children in (list(self._workers.values()), [self._agent]):
            for child in children:
                child.stop()
            until_ns = time.monotonic_ns() + _STOP_NS
            while any(child.exit_code is None for child in children) and time.monotonic_ns() < until_ns:
                self._turn()
            self._turn()
