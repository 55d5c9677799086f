"""A random life of a node out of one seed: what happens to it, and what holds whatever happens."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from koordebpf.errors import KoordebpfError
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.guards import GuardLimits
from koordebpf.units import NS_PER_MS, NS_PER_S
from tests.support.simulated.cluster import CUT_AFTER, CUT_BEFORE
from tests.support.simulated.faults import DEATH
from tests.support.simulated.node import SimulatedNode

PER_MINUTE = 3
_MINUTE_NS = 60 * NS_PER_S
_STEPS = 40
_FLOOR_NS = 50 * NS_PER_MS  # Why: more happens in the same time
_MOST_PODS = 12
_ERRNOS = (errno.ENOSPC, errno.EIO, errno.EBUSY, errno.EACCES, errno.EINTR, errno.EMFILE)
_JUNK = ("", "[]", "{}", "null", "-1", "1e999", "{" * 2000, '{"minLimitPercent": 1e9}', "[1]", "\\ud800")
_ANNOTATIONS = (
    "koordinator.sh/eviction-policy",
    "koordinator.sh/memoryQOS",
    "koordinator.sh/resource-status",
    "scheduling.koordinator.sh/resource-spec",
)
# How a pod is called says what may happen to it: of these only "be" may be evicted.
_KINDS: dict[str, dict[str, Any]] = {
    "be": {"qos": "BE"},
    "ls": {"qos": "LS", "kube_qos": "Burstable", "priority": 9500},
    "lsr": {"qos": "LSR", "kube_qos": "Guaranteed", "priority": 9500},
    "bare": {},
    "critical": {"qos": "BE", "priority": 2_000_000_000},
    "system": {"qos": "BE", "namespace": "kube-system"},
    "kept": {"qos": "BE", "annotations": {"koordinator.sh/eviction-policy": "[]"}},
}


class Violation(AssertionError):
    """What must hold does not."""


class Life:
    """One node from its first agent to its last.

    Of a life that `has_deaths` agents die at any call, of one that `has_errors` any call may fail: a budget that could
    not be written is not asked for after a death. `given` are fields of `AgentConfig` that differ.
    """

    def __init__(self, seed: int, folder: Path, **given: Any) -> None:
        self.random = random.Random(seed)
        self.has_deaths = self.random.random() < 0.7
        self.has_errors = self.random.random() < 0.5
        self.lines: list[str] = []  # what happened
        self.node = SimulatedNode(
            folder,
            seed=seed,
            executor=self.random.choice(["api", "cri"]),
            gates={"CgroupReconcile": True},
            sample_floor_ns=_FLOOR_NS,
            guards=GuardLimits(evictions_per_minute=PER_MINUTE, victims_per_round=2, useless_after=None),
            eviction=EvictSettings(cool_time_ns=NS_PER_S),
            **given,
        )
        self._names: dict[str, str] = {}  # by UID

    def run(self) -> None:
        """Live it. Raises what does not hold."""
        with self.node as node:
            for kind in ("be", "be", "be", "be", *self.random.sample(sorted(_KINDS), 4)):
                self._comes(kind)
            node.hold()
            for _ in range(_STEPS):
                if not node.is_running:
                    self._starts()
                event = self.random.choice(self._events())
                event()
                seconds = self.random.choice([0.01, 0.05, 0.3, 1, 1, 2, self.random.uniform(0, 20)])
                self._passes(seconds)
                self._judge()
            self._ends()

    # After the last agent nothing is left of any.
    def _ends(self) -> None:
        node = self.node
        node.faults.forget()
        node.server.is_lost = False
        for how in ("the last agent", "its successor"):
            if not node.is_running:
                node.start()
            self._passes(2)
            node.stop()
            self._say(f"{how} stops")
            self._judge()
        if left := node.tree.changed():
            raise Violation(f"not restored: {left}")

    def _starts(self) -> None:
        seen = len(self.node.faults.happened)
        try:
            self.node.start()
        except (KoordebpfError, OSError) as error:
            if len(self.node.faults.happened) == seen:
                raise
            self._say(f"the start fails: {error}")

    def _passes(self, seconds: float) -> None:
        seen, failed = len(self.node.faults.happened), len(self.node.failed_ticks())
        self.node.run(seconds)
        happened = self.node.faults.happened[seen:]
        self._say(f"{seconds:.2f} s", *happened)
        news = self.node.failed_ticks()[failed:]
        if news and not any(each.split(" at ")[0] in errno.errorcode.values() for each in happened):
            raise Violation(f"ticks failed: {news}")

    def _judge(self) -> None:
        node = self.node
        planned = {victim.candidate.uid for each in node.plans() for victim in each.plan.victims}
        for uid in planned.union(node.gone):
            if not self._names[uid].startswith("be-"):
                raise Violation(f"{self._names[uid]} was evicted, or is to be")
        if node.decided_otherwise:
            raise Violation(f"decided otherwise at another time: {node.decided_otherwise[0].decision}")
        if not (self.has_errors and self.has_deaths):
            first = {uid: at_ns for at_ns, uid in sorted({*node.server.evicted, *node.runtime.stopped}, reverse=True)}
            times = sorted(first.values())
            for at, begin_ns in enumerate(times):
                if (most := sum(begin_ns <= each < begin_ns + _MINUTE_NS for each in times[at:])) > PER_MINUTE:
                    raise Violation(f"{most} evictions within a minute")

    # What happens.
    def _events(self) -> list[Callable[[], None]]:
        found = [self._pod_comes] * 2 + [self._grows] * 3 + [self._pod_ends, self._shrinks, self._slo_changes]
        found += [self._server_is_lost, self._writes_junk, self._sleeps, self._stops]
        is_asked = self.node.config.executor == "api"
        found += [self._server_answers] * 3 + [self._server_is_slow] if is_asked else [self._runtime_fails] * 3
        found += [self._dies, self._dies_at, self._dies_at] * self.has_deaths
        found += [self._call_fails] * 3 * self.has_errors
        return found

    def _comes(self, kind: str) -> None:
        name = f"{kind}-{len(self._names)}"
        given = dict(_KINDS[kind])
        if "priority" not in given:
            given["priority"] = self.random.choice([0, 5000, 5500, 5999])
        pod = self.node.add(name, self.random.randrange(200), **given)
        self._names[pod.uid] = name
        self._say(f"{name} comes")

    def _pod_comes(self) -> None:
        if len(self.node.pods) < _MOST_PODS:
            self._comes(self.random.choice(["be", "be", "be", *sorted(_KINDS)]))
            self.node.hold()

    def _pod_ends(self) -> None:
        if self.node.pods:
            name = self.random.choice(sorted(self.node.pods))
            self.node.remove(name)
            self.node.hold()
            self._say(f"{name} ends")

    def _grows(self) -> None:
        self._moves(self.random.randrange(300, 800))

    def _shrinks(self) -> None:
        self._moves(self.random.randrange(50))

    def _moves(self, mib: int) -> None:
        if self.node.pods:
            likely = [name for name in self.node.pods if name.startswith("be-")]
            name = self.random.choice(sorted(self.node.pods) + 3 * sorted(likely))
            self.node.hold(**{name: mib})
            self._say(f"{name} holds {mib} MiB")

    def _slo_changes(self) -> None:
        threshold = self.random.choice([40, 60, 70, 90])
        protects = self.random.choice([0, 10, 50, 100])
        quality = {"memoryQOS": {"enable": True, "minLimitPercent": protects, "throttlingPercent": 80}}
        self.node.set_slo(threshold, resourceQOSStrategy={"lsClass": quality, "lsrClass": quality})
        self._say(f"NodeSLO {threshold} %, {protects} % protected")

    def _server_answers(self) -> None:
        answers = self.random.choices([201, 403, 404, 409, 429, 500, 503, CUT_BEFORE, CUT_AFTER], k=4)
        self.node.server.answers.extend(answers)
        self._say(f"answers {answers}")

    def _server_is_slow(self) -> None:
        self.node.server.slow_until_ns = self.node.clock.ns + self.random.randrange(10 * NS_PER_S)

    def _server_is_lost(self) -> None:
        self.node.server.is_lost = not self.node.server.is_lost
        self._say(f"the server is {'lost' if self.node.server.is_lost else 'back'}")

    def _runtime_fails(self) -> None:
        self.node.runtime.failures.extend(["busy"] * self.random.randrange(1, 4))

    def _writes_junk(self) -> None:
        pods = [pod for name, pod in sorted(self.node.pods.items()) if not name.startswith("kept-")]
        if pods:
            pod, key = self.random.choice(pods), self.random.choice(_ANNOTATIONS)
            pod.object["metadata"]["annotations"][key] = value = self.random.choice(_JUNK)
            self.node.server.version += 1
            self._say(f"{pod.name} writes {key}: {value[:20]}")

    def _sleeps(self) -> None:
        self.node.clock.asleep_ns += self.random.randrange(20 * NS_PER_S)

    def _stops(self) -> None:
        seen = len(self.node.faults.happened)
        if self.node.is_running:
            self.node.stop()
            self._say("the agent stops", *self.node.faults.happened[seen:])

    def _dies(self) -> None:
        if self.node.is_running:
            self.node.kill()
            self._say("the agent is killed")

    def _dies_at(self) -> None:
        self.node.faults.plan(self.random.randrange(1, 400), DEATH)

    def _call_fails(self) -> None:
        for _ in range(self.random.choice([1, 1, 3])):
            self.node.faults.plan(self.random.randrange(1, 300), self.random.choice(_ERRNOS))

    def _say(self, *words: str) -> None:
        self.lines.append("  ".join([f"{self.node.clock.ns / NS_PER_S:9.2f}", *words]))
