"""Which CPUs pods share: those that no pod, reservation or system QoS class has for itself. Pure.

Koordinator's LS pods and Kubernetes' Burstable ones share one pool, best-effort pods another, larger one: LSR pods let
them onto their CPUs, LSE pods do not.

Source: koordinator pkg/koordlet/statesinformer/impl/states_noderesourcetopology.go, calCPUSharePools.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from koordebpf.kernel.proc.cpu_topology import Cpu


class BoundPod(msgspec.Struct, frozen=True, gc=False):
    """CPUs that a pod has for itself; `koord_qos` is its raw label koordinator.sh/qosClass."""

    koord_qos: str
    cpus: tuple[int, ...]
    by_kubelet: bool = False


class SharePool(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """CPUs of one NUMA node that pods share, ascending; `socket` is that of the first of them."""

    socket: int
    numa_node: int
    cpus: tuple[int, ...]


class SharePools(msgspec.Struct, frozen=True):
    """Pools by socket and NUMA node, in this order. A NUMA node that pods have for themselves has none."""

    ls: tuple[SharePool, ...] = ()
    be: tuple[SharePool, ...] = ()

    @property
    def ls_cpus(self) -> tuple[int, ...]:
        """The CPUs of all LS pools, ascending."""
        return tuple(sorted(cpu for pool in self.ls for cpu in pool.cpus))

    @property
    def be_cpus(self) -> tuple[int, ...]:
        """The CPUs of all BE pools, ascending."""
        return tuple(sorted(cpu for pool in self.be for cpu in pool.cpus))


def share_pools(
    online: Iterable[Cpu], bound: Iterable[BoundPod], reserved: Iterable[int] = (), system: Iterable[int] = ()
) -> SharePools:
    """Return the pools. CPUs that are not online are in none.

    Args:
        online: the CPUs of the node.
        bound: pods with CPUs of their own, by the scheduler (annotation resource-status) or by kubelet.
        reserved: of the Node's reservation annotation.
        system: of the system QoS class, where it has them for itself.
    """
    pods, cpus = tuple(bound), tuple(online)
    of_pods = {cpu for pod in pods for cpu in pod.cpus}
    withheld = withheld_from_be(pods, reserved, system)
    return SharePools(
        ls=_by_node(each for each in cpus if each.cpu not in withheld and each.cpu not in of_pods),
        be=_by_node(each for each in cpus if each.cpu not in withheld),
    )


def withheld_from_be(
    bound: Iterable[BoundPod], reserved: Iterable[int] = (), system: Iterable[int] = ()
) -> dict[int, str]:
    """Return the CPUs that best-effort pods never get, each with whose it is or why. Arguments as of `share_pools`."""
    withheld = dict.fromkeys(system, "of the system QoS class")
    withheld |= dict.fromkeys(reserved, "reserved")
    for pod in bound:
        if pod.by_kubelet:
            withheld |= dict.fromkeys(pod.cpus, "of pods that kubelet bound to them")
        elif pod.koord_qos == "LSE":
            withheld |= dict.fromkeys(pod.cpus, "of LSE pods")
    return withheld


def _by_node(cpus: Iterable[Cpu]) -> tuple[SharePool, ...]:
    nodes: dict[int, list[Cpu]] = {}
    for each in sorted(cpus, key=lambda cpu: cpu.cpu):
        nodes.setdefault(each.numa_node, []).append(each)
    pools = (SharePool(of[0].socket, node, tuple(each.cpu for each in of)) for node, of in nodes.items())
    return tuple(sorted(pools, key=lambda pool: (pool.socket, pool.numa_node)))
