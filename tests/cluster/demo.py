"""`python -m tests.cluster.demo`: evict a stress pod on a real node of a real cluster, with live commentary."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

from koordebpf.units import MIB, NS_PER_S, format_bytes
from tests.cluster.binaries import CannotHave, obtain, say_line
from tests.cluster.control_plane import ControlPlane, control_plane
from tests.cluster.node import RealNode, hierarchies
from tests.cluster.objects import install
from tests.cluster.releases import UnknownMinor, chosen
from tests.cluster.story import NODE_BYTES, Story
from tests.cluster.timeline import Follower

_COLUMNS = 80
_BAR = 30
_ROW_S = 0.5
_THRESHOLD_PERCENT, _LOWER_PERCENT = 60, 55
_STRESS_MIB, _STRESS_MIB_S = 2600, 500
_WAIT_S = 60


class Screen:
    """The story for people: what happens, with the second in which it happens."""

    def __init__(self) -> None:
        self._start_ns = time.monotonic_ns()
        self._printed = 0

    def say(self, text: str = "", indent: str = "") -> None:
        """Print a paragraph."""
        print(textwrap.fill(text, _COLUMNS, subsequent_indent=indent, break_on_hyphens=False), flush=True)

    def row(self, text: str) -> None:
        """Print what has just happened."""
        second = (time.monotonic_ns() - self._start_ns) / NS_PER_S
        first, *more = textwrap.wrap(text, _COLUMNS - 10, subsequent_indent="  ", break_on_hyphens=False)
        print(f"  {second:6.2f}  {first}", *(f"{'':10}{line}" for line in more), sep="\n", flush=True)

    def usage(self, story: Story) -> None:
        """Print how full the node is."""
        percent = story.used_percent()
        at = _BAR * _THRESHOLD_PERCENT // 100
        cells = "".join("#" if i * 100 < percent * _BAR else " " for i in range(_BAR))
        pods = " ".join(f"{name} {follower.usage_bytes() // MIB}" for name, follower in story.pods.items())
        self.row(f"[{cells[:at]}|{cells[at:]}]{percent:>4} %  {pods}")

    def agent(self, log: str) -> None:
        """Print what the agent has said since the last time."""
        lines = log.splitlines()
        for line in lines[self._printed :]:
            # 2026-01-31 12:00:00,000 I text
            self.row(f"koordebpf: {line.split(' ', 3)[-1]}")
        self._printed = len(lines)


def main() -> int:
    """Tell the story; return the exit code."""
    if os.geteuid() != 0:
        print("demo-cluster: needs root: its node is made of cgroups and namespaces", file=sys.stderr)
        return 3
    if not hierarchies():
        print("demo-cluster: the node is made of cgroup v1 hierarchies, and this machine has none", file=sys.stderr)
        return 3
    # As ^C: what was started is ended, what was made is removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        release = chosen()
    except UnknownMinor as error:
        print(f"demo-cluster: {error}", file=sys.stderr)
        return 2
    screen = Screen()
    screen.say(f"koordebpf on Kubernetes {release.version}: a stress pod eats a real node")
    print()
    screen.say(
        "etcd, kube-apiserver and kube-controller-manager run on loopback. The node is a kubelet with containerd in a"
        f" cgroup of {format_bytes(NODE_BYTES)} and namespaces of its own. The agent runs beside it as its"
        " ServiceAccount, with the rights of deploy/, and evicts through the API server:"
    )
    screen.say("koordebpf run --source api --executor api --enforce", indent="  ")
    print()
    try:
        binaries = obtain(say_line)
        with contextlib.ExitStack() as stack:
            screen.row("the control plane starts")
            plane = stack.enter_context(control_plane(binaries.kubernetes))
            install(plane.api)
            screen.row(f"it is ready: {plane.url}; deploy/ is applied")
            node = RealNode(plane, binaries, "real", NODE_BYTES)
            stack.callback(node.close)
            screen.row(f"node {node.name} is Ready: {node.cgroup}")
            with _story(plane, node) as story:
                stress = _tell(screen, story)
                is_good = _end(screen, story, stress)
        screen.row("pods, node and control plane are ended")
    except CannotHave as error:
        print(f"demo-cluster: {error}", file=sys.stderr)
        return 3
    except (AssertionError, TimeoutError) as error:
        print(f"\nit did not go as it should: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return 0 if is_good else 1


@contextlib.contextmanager
def _story(plane: ControlPlane, node: RealNode) -> Iterator[Story]:
    plane.add_namespace("demo")
    with tempfile.TemporaryDirectory() as folder:
        story = Story(plane, node, "demo", Path(folder))
        try:
            yield story
        finally:
            story.close()


def _tell(screen: Screen, story: Story) -> Follower:
    screen.row("web (LS, priority 9500) and train (BE, priority 5500) are created")
    story.hold("web", 300, qos="LS", priority="koord-prod", requests={"memory": "300Mi"})
    story.hold("train", 300, priority="koord-batch-high")
    screen.usage(story)
    agent = story.agent()
    story.threshold(memoryEvictThresholdPercent=_THRESHOLD_PERCENT, memoryEvictLowerPercent=_LOWER_PERCENT)
    screen.agent(agent.log)
    screen.row(f"NodeSLO: BE pods go at {_THRESHOLD_PERCENT} %, until it is below {_LOWER_PERCENT} %")
    stress = story.add("stress", _STRESS_MIB, rate_mib_s=_STRESS_MIB_S)
    screen.row(f"stress (BE, priority 5000) is created: it eats {_STRESS_MIB_S} MiB/s")
    deadline = time.monotonic() + _WAIT_S
    while not {"deleted", "removed"} <= stress.seen_ns.keys() and time.monotonic() < deadline:
        time.sleep(_ROW_S)
        screen.agent(agent.log)
        screen.usage(story)
    agent.said("gave ")
    screen.agent(agent.log)
    return stress


def _end(screen: Screen, story: Story, stress: Follower) -> bool:
    story.evicted("stress")
    (event,) = story.events("stress")
    print()
    screen.say("stress, as seen from outside:")
    for line in stress.lines():
        print(f"  {line}")
    print()
    screen.say("what kubectl describe pod shows of it:")
    screen.say(f"  {event['type']}  {event['reason']}  {event['message']}", indent="    ")
    print()
    survivors = {name: story.pods[name].is_running() for name in ("web", "train")}
    for name, is_running in survivors.items():
        screen.say(f"  {'ok' if is_running else 'NO'}  {name} {'kept running' if is_running else 'did not survive'}")
    memory = ", ".join(f"{name} {format_bytes(size)}" for name, size in story.cluster.memory_bytes().items())
    screen.say(f"      memory of the control plane: {memory}", indent=" " * 6)
    print()
    return all(survivors.values())


if __name__ == "__main__":
    sys.exit(main())
