"""What sysfs says of the NICs that the CustomNodeResource names."""

from __future__ import annotations

from koordebpf.kernel.host.network_link import has_link
from koordebpf.state.katalyst.measured import Cnr

_MOST = 64  # Why: of a CustomNodeResource that names more, the first ones, which is 4 ms


def links_of(cnr: Cnr) -> dict[str, bool]:
    """Return whether each NIC has a link, by the name of its zone; one that cannot be seen from here is left out.

    Cost:    60 µs a NIC.
    """
    found = {zone.name: has_link(zone.name) for zone in cnr.nics[:_MOST]}
    return {name: is_up for name, is_up in found.items() if is_up is not None}
