"""Everything that Katalyst's plugins inside the agent decide from, of one moment."""

from __future__ import annotations

from msgspec.structs import replace

from koordebpf.collect.cluster_view import Known
from koordebpf.collect.katalyst.memory import KatalystMemory
from koordebpf.collect.katalyst.rootfs import RootfsCollector
from koordebpf.kernel.host.network_link import has_link
from koordebpf.state.katalyst.measured import Cnr, KatalystMeasured
from koordebpf.state.measured import NodeMeasure

_MOST = 64  # Why: of a CustomNodeResource that names more, the first ones, which is 4 ms


def links_of(cnr: Cnr) -> dict[str, bool]:
    """Return whether each NIC has a link, by the name of its zone; one that cannot be seen from here is left out.

    Cost:    60 µs a NIC.
    """
    found = {zone.name: has_link(zone.name) for zone in cnr.nics[:_MOST]}
    return {name: is_up for name, is_up in found.items() if is_up is not None}


class KatalystCollector:
    """Puts together what is read of memory, the disk and the cluster.

    Args:
        memory: of the node.
        known: of the cluster, for the CNR.
        rootfs: of the disk and pods' layers; None: no plugin judges them.
        with_links: the links of the CNR's NICs are looked at.
    """

    def __init__(
        self, memory: KatalystMemory, known: Known, rootfs: RootfsCollector | None, *, with_links: bool
    ) -> None:
        self._memory = memory
        self._known = known
        self._rootfs = rootfs
        self._with_links = with_links

    def measure(self, node: NodeMeasure, *, is_round: bool) -> KatalystMeasured:
        """Return what is known now; `node` and `is_round` as in `KatalystMemory.measure`."""
        cnr = self._known.cnr
        links = links_of(cnr) if cnr is not None and self._with_links else {}
        image_fs, rootfs = self._rootfs.measure() if self._rootfs is not None else (None, None)
        memory = self._memory.measure(node, is_round=is_round)
        return replace(memory, cnr=cnr, links=links, image_fs=image_fs, rootfs=rootfs)
