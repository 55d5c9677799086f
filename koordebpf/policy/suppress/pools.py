"""Which CPUs best-effort pods may run on at all."""

from __future__ import annotations

import msgspec

from koordebpf.slo.pods.share_pools import BoundPod, withheld_from_be
from koordebpf.state.cpu.measured import Cpu, CpuView


class CpuPools(msgspec.Struct, frozen=True):
    """The online CPUs that best-effort pods may use: `lsr` belong to LSR pods, `shared` to no pod alone."""

    lsr: tuple[Cpu, ...]
    shared: tuple[Cpu, ...]

    @property
    def cpus(self) -> frozenset[int]:
        """The numbers of all of them."""
        return frozenset(each.cpu for each in (*self.lsr, *self.shared))


def be_pools(cpu: CpuView) -> CpuPools:
    """Return the pools.

    Where two pods name the same CPU, the one that shares less decides; in Koordinator the later one does.

    Source:  koordinator pkg/koordlet/qosmanager/plugins/cpusuppress/cpu_suppress.go.
    """
    withheld = withheld_cpus(cpu)
    lsr = {each for owner in cpu.placement.owners if owner.koord_qos == "LSR" for each in owner.cpus}
    free = [each for each in cpu.measured.topology.online if each.cpu not in withheld]
    return CpuPools(
        lsr=tuple(each for each in free if each.cpu in lsr), shared=tuple(each for each in free if each.cpu not in lsr)
    )


def withheld_cpus(cpu: CpuView) -> dict[int, str]:
    """Return the online CPUs that best-effort pods never get, each with whose it is or why."""
    placement, parent = cpu.placement, cpu.measured.be_parent_cpus
    bound = (BoundPod(owner.koord_qos, owner.cpus, owner.by_kubelet) for owner in placement.owners)
    withheld = withheld_from_be(bound, placement.reserved_cpus, placement.system_cpus)
    online, manager = cpu.measured.topology.cpus, cpu.measured.manager
    if manager is not None and manager.shared:
        given = {*manager.shared, *(each for cpus in manager.pinned.values() for each in cpus)}
        withheld |= dict.fromkeys(set(online).difference(given), "kept back by kubelet")
    if parent:  # v2: empty is "as above"
        # The kernel would refuse them.
        withheld |= dict.fromkeys(set(online).difference(parent), "not of the directory above theirs")
    return {each: withheld[each] for each in online if each in withheld}
