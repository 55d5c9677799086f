"""Ways to run the same node: Kubernetes alone, with the kubelet's thresholds, with the agent and its strategies."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

from koordebpf.kernel.io.closing import Closing
from koordebpf.units import MIB
from tests.bench.report import CannotMeasure
from tests.felt.node import FeltNode, Resources

KUBELET_EACH_S = 10.0  # pkg/kubelet/eviction: monitoringInterval
KUBELET_AVAILABLE = 100 * MIB  # its default of evictionHard memory.available
_AGENT = Resources(20, 64 * MIB, None, 256 * MIB)  # as deploy/base/agent/daemonset.yaml has it
_UP_S = 60.0
# Of the best-effort class, in bytes a second: a quarter of what a small cloud disk gives (125 MiB/s).
_BE_BPS = 32 * MIB
STRATEGIES = ("suppression", "idle", "batch", "blockio", "burst", "memory", "pagecache")
_GATES = {
    "suppression": "BECPUSuppress",
    "idle": "GroupIdentity",
    "batch": "BatchResource",
    "blockio": "BlkIOReconcile",
    "burst": "CPUBurst",
    "memory": "CgroupReconcile",
    "pagecache": "BEPageCacheSuppress",
}


class Way(NamedTuple):
    """One way. `strategies` None: no agent; those are on beside eviction for memory, which always is."""

    name: str
    strategies: frozenset[str] | None = None
    kubelet: bool = False
    policy: str = "cfsQuota"  # of suppression

    @property
    def agent(self) -> bool:
        return self.strategies is not None


NOTHING = Way("nothing")
KUBELET = Way("kubelet", kubelet=True)
# Koordinator's default is a set of CPUs, which leaves a node of two CPUs alone.
DEFAULT = Way("default", frozenset({"suppression"}), policy="cpuset")
ALL = Way("all", frozenset(STRATEGIES))
# Best-effort pods run when nothing else wants the CPU, in place of a quota.
IDLE = Way("all-cpuIdle", ALL.strategies, policy="cpuIdle")
WAYS = {each.name: each for each in (NOTHING, KUBELET, DEFAULT, ALL, IDLE)}
WAYS |= {f"all-{name}": Way(f"all-{name}", frozenset(STRATEGIES) - {name}) for name in STRATEGIES}
WAYS |= {f"only-{name}": Way(f"only-{name}", frozenset({name})) for name in STRATEGIES}
WAYS["only-eviction"] = Way("only-eviction", frozenset())


def node_slo(way: Way, disk: str) -> dict[str, Any]:
    """Return the NodeSLO's spec for a way; `disk` is the device that best-effort pods use."""
    on = way.strategies or frozenset()
    threshold = {
        "enable": True,
        "cpuSuppressThresholdPercent": 65,
        "cpuSuppressPolicy": "cpuset" if way.policy == "cpuset" else "cfsQuota",
        "memoryEvictThresholdPercent": 70,
        "memoryEvictLowerPercent": 65,
    }
    be = {
        "cpuQOS": {"enable": True, "groupIdentity": -1},
        "memoryQOS": {"enable": True, "throttlingPercent": 80, "wmarkRatio": 95},
        "blkioQOS": {
            "enable": "blockio" in on,
            "blocks": [{"name": disk, "type": "device", "ioCfg": {"readBPS": _BE_BPS, "writeBPS": _BE_BPS}}],
        },
    }
    ls = {
        "cpuQOS": {"enable": True, "groupIdentity": 2},
        "memoryQOS": {"enable": True, "minLimitPercent": 50, "lowLimitPercent": 100},
    }
    return {
        "resourceUsedThresholdWithBE": threshold,
        "resourceQOSStrategy": {"beClass": be, "lsClass": ls},
        "cpuBurstStrategy": {"policy": "auto" if "burst" in on else "none"},
    }


def gates(way: Way) -> str:
    """Return the value of --feature-gates for a way."""
    on = way.strategies or frozenset()
    return ",".join(f"{gate}={str(name in on).lower()}" for name, gate in _GATES.items())


class Agent(Closing):
    """The agent in a pod of its own on the node, as the DaemonSet starts it."""

    def __init__(self, node: FeltNode, way: Way, manifest: Path, folder: Path) -> None:
        self._node = node
        container = node.add_ls("koordebpf", _AGENT)
        # It is no pod of the manifest: it never evicts itself.
        node.cgroup.pods.pop()
        self._log = folder / f"agent-{way.name}.log"
        # A tmpfs, as /run is on a node.
        shm = Path("/dev/shm")
        run_dir = (shm if shm.is_dir() else Path("/run")) / f"koordebpf-felt-{os.getpid()}"
        config = folder / "agent.json"
        config.write_text(
            json.dumps(
                {
                    "apiVersion": "koordebpf.io/v1alpha1",
                    "kind": "AgentConfiguration",
                    "suppress": {"policy": way.policy},
                    "strategies": {"hooks": {"idleBestEffort": True}, "bePageCacheSuppress": {"v1": "limit"}},
                }
            )
        )
        command = [sys.executable, "-m", "koordebpf", "run", "--config", str(config), "--pods", str(manifest)]
        command += ["--node-cgroup", str(node.cgroup.path), "--executor", "cgroup", "--enforce", "--listen", ""]
        command += ["--evictions-per-minute", "1000", "--run-dir", str(run_dir), "--feature-gates", gates(way)]
        self._run_dir = run_dir
        with self._log.open("wb") as out:
            self._process = node.start(container, command, score=-997 if _may_lower() else 0, out=out.fileno())
        until = time.monotonic() + _UP_S
        while " I watching " not in self._log.read_text():
            if self._process.poll() is not None or time.monotonic() > until:
                said = self._log.read_text()[-2000:]
                self.close()
                raise CannotMeasure(f"the agent did not start:\n{said}")
            time.sleep(0.05)

    @property
    def evictions(self) -> int:
        """How many pods it has evicted."""
        return self._log.read_text().count(" evicting ")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def log(self) -> str:
        """Return what it has said."""
        return self._log.read_text(errors="replace")

    def close(self) -> None:
        """End it, so that it restores what it wrote."""
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        self._process.kill()
        self._process.wait()
        self._node.remove("koordebpf")
        subprocess.run(["rm", "-rf", str(self._run_dir)], check=True)


class Kubelet(Closing):
    """A stand-in for the kubelet's eviction manager, no more: a hard threshold that is looked at every 10 s.

    It ends every process of the best-effort pod, which uses more than its request of nothing. The kubelet's memory
    notifier (`--kernel-memcg-notification`) is off by default, and so it is here.
    """

    def __init__(self, node: FeltNode, victim: Path, first_s: float) -> None:
        self._node, self._victim = node, victim
        self._due = time.monotonic() + first_s
        self._over = threading.Event()
        self.evictions = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(max(self._due - time.monotonic(), 0)):
            self._due += KUBELET_EACH_S
            available = self._node.cgroup.limit_bytes - self._node.working_set_bytes()
            if available < KUBELET_AVAILABLE:
                self._node.kill(self._victim)
                self.evictions += 1

    def close(self) -> None:
        self._over.set()
        self._thread.join()


def _may_lower() -> bool:
    status = Path("/proc/self/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("CapEff"))
    return bool(int(line.split()[1], 16) >> 24 & 1)  # CAP_SYS_RESOURCE
