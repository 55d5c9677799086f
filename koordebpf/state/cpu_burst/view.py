"""Measurement and pods to one `BurstView`."""

from __future__ import annotations

from collections.abc import Iterable

from koordebpf.kube.cache.objects import Node
from koordebpf.state.cpu_burst.measured import BurstMeasured, BurstView
from koordebpf.state.hooks.view import KnownHookPods
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.pods.requests import NATIVE_CPU

APART = frozenset({"LSE", "LSR"})  # with CPUs of their own: they never burst, and their CPUs are not of the share pool
_LIVE = frozenset({"Pending", "Running"})
_PODS = KnownHookPods()


def may_burst(pod: PodFacts) -> bool:
    """Tell whether a pod is one that CPU burst is for: pending or running, not LSE, LSR or BE by its label.

    Nor is it for one that the scheduler bound to CPUs: CPUSetAllocator takes its quota away.

    Source:  koordinator pkg/koordlet/qosmanager/plugins/cpuburst, by the raw class.
    """
    is_live = pod.phase in _LIVE and not pod.is_terminating
    return is_live and pod.koord_qos not in (*APART, "BE") and not pod.cpus.cpus


def burst_view(measured: BurstMeasured, pods: Iterable[PodFacts], node: Node | None) -> BurstView:
    """Return the node as CPU burst sees it. The same arguments give an equal view."""
    known = tuple(pods)
    found = _PODS.of({each.uid: each.path for each in measured.pods}, known)
    apart = (each.terms for each in known if each.koord_qos in APART and each.phase in _LIVE)
    return BurstView(
        measured=measured,
        pods={each.uid: each for each in found},
        apart_millicpu=sum(each.cpu_request_millicpu for each in apart if each.cpu_resource == NATIVE_CPU),
        annotations=(node.metadata.annotations if node is not None else None) or {},
    )
