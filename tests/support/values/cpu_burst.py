"""Nodes for tests of CPU burst: pods of one or two containers with a limit of one CPU each, on eight CPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.kube.cache.objects import Pod
from koordebpf.slo.strategies.cpu_burst import DEFAULT_CPU_BURST, CPUBurstStrategy
from koordebpf.state.build import view_of_frame
from koordebpf.state.view import Frame
from koordebpf.strategies.cpu_burst.decide import CPU_BURST, BurstDecision, BurstState
from koordebpf.strategies.cpu_burst.values import BurstContainer, BurstMeasured, BurstPod, BurstSettings
from koordebpf.units import NS_PER_S
from tests.support.values.cpu_nodes import cpu_frame
from tests.support.values.hooks import batch_pod_object

AUTO = replace(DEFAULT_CPU_BURST, policy="auto")
POD = "kubepods/poduid-web"
ONE = f"{POD}/id-a"
TWO = f"{POD}/id-b"
CPU = {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}


def web(qos: str = "LS", containers: Mapping[str, Any] | None = None, name: str = "web", **given: Any) -> Pod:
    """Return a pod `web` with one container `a`."""
    return batch_pod_object(
        qos, {"a": CPU} if containers is None else containers, uid=f"uid-{name}", name=name, kube_qos="Burstable",
        **given,
    )  # fmt: skip


def container(name: str = "a", *, throttled: bool = True, **given: Any) -> BurstContainer:
    """Return a container of the pod that has what its limit says, and is throttled."""
    values = {"quota_us": 100_000, "period_us": 100_000, "burst_us": 0, "used_millicpu": 1000}
    return BurstContainer(id=f"id-{name}", path=f"{POD}/id-{name}", is_throttled=throttled, **{**values, **given})


def pod(*containers: BurstContainer, quota_us: int | None = 100_000, **given: Any) -> BurstPod:
    """Return the pod's own level."""
    return BurstPod("uid-web", POD, quota_us, containers=containers, **{"burst_us": 0, **given})


class BurstNode:
    """A node, round after round: what is decided is what files hold in the next round."""

    def __init__(
        self,
        *pods: Pod,
        strategy: CPUBurstStrategy | None = AUTO,
        settings: BurstSettings = BurstSettings(),  # noqa: B008 - frozen
    ) -> None:
        self.pods = pods or (web(),)
        self.strategy = strategy
        self.settings = settings
        self.state = BurstState()
        self.now_ns = 1000 * NS_PER_S
        self.held: dict[str, int] = {}  # quotas that were written

    def frame(self, *measured: BurstPod, used: int | None = 1000, apart_used: int = 0, isolated: int = 0) -> Frame:
        base = cpu_frame()
        burst = BurstMeasured(self.strategy, 8, used, apart_used, measured, isolated)
        now = replace(base.measured, now_ns=self.now_ns, since_ns=self.now_ns).with_part(CPU_BURST.part, burst)
        return replace(base, pods=self.pods, measured=now, featureGates={**base.featureGates, "CPUBurst": True})

    def round(self, *measured: BurstPod, after_s: float = 1, **given: Any) -> BurstDecision:
        """Decide, and decide the same of the frame as it is written and read."""
        self.now_ns += int(after_s * NS_PER_S)
        frame = self.frame(*measured, **given)
        read = decode_frame(encode_frame(frame), "frame")
        decided, again = (
            CPU_BURST.decide(view, CPU_BURST.measured_of(view), self.state, self.settings)
            for view in map(view_of_frame, (frame, read))
        )
        assert again == decided
        self.state = decided.state
        return decided

    def step(self, *, throttled: bool = True, after_s: float = 1, **given: Any) -> int:
        """Decide on the pod `web` with one container that holds what was written; return the container's quota."""
        held, of_pod = self.held.get(ONE, 100_000), self.held.get(POD, 100_000)
        decided = self.round(
            pod(container(throttled=throttled, quota_us=held), quota_us=of_pod), after_s=after_s, **given
        )
        found = values(decided)
        self.held = {path: found.get((path, "cpu.cfs_quota_us"), 100_000) for path in (ONE, POD)}
        return self.held[ONE]


def values(decided: BurstDecision) -> dict[tuple[str, str], Any]:
    """Return what is wanted, by path and the file's v1 name."""
    return {(each.path, each.file.value): each.value for each in decided.writes}
