"""From the crossing to a StopContainer at a real containerd: the first one of an agent, and later ones."""

from __future__ import annotations

import contextlib
import re
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from koordebpf.kernel.cgroup.hierarchy import CgroupMemory
from tests.bench.figure import figure
from tests.bench.nodes import TMPFS
from tests.bench.report import CannotMeasure, Report
from tests.cluster.binaries import CannotHave, obtain
from tests.cluster.control_plane import control_plane
from tests.cluster.node import RealNode, hierarchies
from tests.cluster.objects import install
from tests.cluster.story import NODE_BYTES, Story
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.support.loads.workloads import Hog
from tests.support.nodes import MIB

_THRESHOLD_PERCENT = 45
_CAP_MIB = (NODE_BYTES >> 20) * 60 // 100
_RATE_MIB_S = 512
_HELD_S = 10
_BEFORE_S = 1.5  # the agent knows the pod, and has warmed what it warms
_METHOD = (
    "containerd and kubelet in a node of 3 GiB, pods from a real API server, whose status names the container, hog at"
    " 512 MiB/s; from the hog's own mark at the byte to"
)
# time="2026-01-31T12:00:00.000000000Z" level=info msg="StopContainer for \"4f…\" with timeout 0 (s)"
_STOP = re.compile(r'^time="([^"]+)" .*msg="StopContainer for \\"(\w+)\\" with timeout 0 \(s\)"', re.MULTILINE)


def cri_stop(report: Report) -> None:
    """Have agents that act by the runtime's socket stop a container each, then one agent many."""
    if not hierarchies():
        raise CannotMeasure("the real node is made of cgroup v1 hierarchies, and this machine has none")
    first, later = (2, 3) if report.quick else (10, 30)
    try:
        with _node(report) as story:
            bench = _Bench(story)
            for _ in range(first):
                with bench.agent() as agent:
                    bench.stop(agent, 1)
            firsts = bench.taken()
            with bench.agent() as agent:
                bench.stop(agent, 1)
                bench.taken()
                bench.stop(agent, later)
    except CannotHave as error:
        raise CannotMeasure(str(error)) from None
    for which, (sent, of_sent, arrived) in (("first", firsts), ("later", bench.taken())):
        ours = f"{_METHOD} the call"
        report.add(figure(f"crossed → StopContainer sent, {which} of an agent", "ms", sent, ours, reach_p99=15))
        report.add(figure("  of it decided → sent", "ms", of_sent, "from the audit lines"))
        theirs = f"{_METHOD} containerd's own log line"
        report.add(figure(f"crossed → StopContainer at containerd, {which}", "ms", arrived, theirs, reach_p99=15))


@contextlib.contextmanager
def _node(report: Report) -> Iterator[Story]:
    with contextlib.ExitStack() as stack:
        binaries = obtain(report.say)
        plane = stack.enter_context(control_plane(binaries.kubernetes))
        install(plane.api)
        node = RealNode(plane, binaries, "bench", NODE_BYTES)
        stack.callback(node.close)
        plane.add_namespace("bench")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=TMPFS)))
        story = Story(plane, node, "bench", folder)
        stack.callback(story.close)
        yield story


class _Bench:
    def __init__(self, story: Story) -> None:
        self._story = story
        self._pods = 0
        self.sent: list[float] = []
        self.of_sent: list[float] = []  # of it since the decision
        self.arrived: list[float] = []

    def taken(self) -> tuple[list[float], list[float], list[float]]:
        """Return what was measured since the last call: crossed to sent, decided to sent, crossed to arrived."""
        found = self.sent, self.of_sent, self.arrived
        self.sent, self.of_sent, self.arrived = [], [], []
        return found

    def agent(self) -> LiveAgent:
        story = self._story
        given = ("--executor", "cri", "--cri-socket", story.node.socket, "--evictions-per-minute", 1000)
        agent = story.agent(*given)
        percents = {"memoryEvictThresholdPercent": _THRESHOLD_PERCENT, "memoryEvictLowerPercent": 40}
        story.threshold(**percents)
        return agent

    def stop(self, agent: LiveAgent, n: int) -> None:
        """Have so many containers stopped of which the crossing is known."""
        wanted = len(self.sent) + n
        for _ in range(2 * n + 3):
            self._stop_one(agent)
            if len(self.sent) == wanted:
                return
        raise RuntimeError(f"the hog said {wanted - len(self.sent)} times too seldom when it crossed")

    # Nothing is measured where the hog was killed in the page fault that crossed: it has not come to say so.
    def _stop_one(self, agent: LiveAgent) -> None:
        self._pods += 1
        name, node = f"be-{self._pods}", self._story.node
        follower = self._story.add(name, 20, change=lambda pod: pod["spec"].update(restartPolicy="Never"))
        follower.wait_for("running")
        follower.wait_for_bytes(20 * MIB)
        until(lambda: _is_named(self._story.api.get(follower.pod)), "the container in the pod's status", 60)
        time.sleep(_BEFORE_S)
        lines = len(agent.plans())
        log = node.log("containerd")
        offset = log.stat().st_size
        # From the host: the hog's clock and its mark are known. It ends with the container's own process.
        cgroup, pid = _load(follower.cgroup())
        hog = Hog(
            cgroup,
            _CAP_MIB,
            *("--mark-file", node.cgroup / "memory.usage_in_bytes", "--mark-bytes", self._mark_bytes()),
            rate_mib_s=_RATE_MIB_S,
            hold_s=_HELD_S,
        )
        offset_ns = time.time_ns() - time.monotonic_ns()
        while pid.exists() and hog.process.poll() is None:
            time.sleep(0.002)
        hog.process.kill()
        story = hog.story()
        line = agent.has_plan(lines + 1)
        (outcome,) = line["outcomes"]
        if outcome["name"] != name or outcome["result"] != "done":
            raise RuntimeError(f"{outcome['name']}: {outcome['result']}: {outcome['detail']}")
        arrived_ns = until(lambda: _stops_ns(log, offset), "containerd's log line")[0]
        if "mark" in story:
            sent_ns = int(outcome["sent_ns"])
            self.sent.append((sent_ns - story["mark"]) / 1e6)
            self.of_sent.append((sent_ns - int(line["decided_ns"])) / 1e6)
            self.arrived.append((arrived_ns - offset_ns - story["mark"]) / 1e6)
        self._story.api.delete(follower.pod, gracePeriodSeconds=0)
        follower.wait_for("removed")
        follower.close()

    def _mark_bytes(self) -> int:
        # The raw usage at which the agent finds the threshold reached, with what is reclaimable now.
        node = self._story.node
        with CgroupMemory(node.cgroup, 1) as memory:
            stat = memory.read()
        reclaimable = stat.inactive_file_bytes + stat.active_file_bytes + (stat.slab_reclaimable_bytes or 0)
        return -(-_THRESHOLD_PERCENT * node.memory_bytes // 100) + reclaimable


def _is_named(pod: dict[str, Any] | None) -> bool:
    statuses = (pod or {}).get("status", {}).get("containerStatuses") or [{}]
    return bool(statuses[0].get("containerID"))


# The container's cgroup, not that of the pod's sandbox, and the folder in /proc of its process.
def _load(pod: Path) -> tuple[Path, Path]:
    def find() -> tuple[Path, Path] | None:
        for each in pod.iterdir():
            if not each.is_dir():
                continue
            for pid in (each / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{pid}/comm").read_text().strip() == "hog":
                        return each, Path("/proc") / pid
        return None

    found: tuple[Path, Path] = until(find, "the container's cgroup")
    return found


def _stops_ns(log: Path, offset: int) -> list[int]:
    text = log.read_bytes()[offset:].decode(errors="replace")
    return [_ns(stamp) for stamp, _ in _STOP.findall(text)]


def _ns(stamp: str) -> int:
    whole, _, rest = stamp.partition(".")
    digits = re.match(r"\d+", rest)
    fraction = digits[0] if digits else ""
    zone = rest[len(fraction) :]
    seconds = int(datetime.fromisoformat(f"{whole}{zone or 'Z'}").timestamp())
    return seconds * 1_000_000_000 + int(fraction.ljust(9, "0"))
