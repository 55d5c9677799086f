"""Whether a Koordinator manager runs, by the Lease that it renews: two that write the same numbers would fight."""

from __future__ import annotations

from typing import Final

from koordebpf.errors import KubeDenied, KubeError, KubeGone
from koordebpf.kube.clients.lease import Lease, LeaseClient
from koordebpf.units import NS_PER_S

MANAGER_NAMESPACE: Final = "koordinator-system"
MANAGER_LEASE: Final = "koordinator-manager"
_EVERY_NS: Final = 5 * NS_PER_S
_TIMEOUT_S: Final = 2.0
_DURATION_S: Final = 15  # of a Lease that says none


class KoordManager:
    """Looks at the Lease now and then. Clocks of two machines differ: that it changes counts, not what it says."""

    def __init__(self, lease: LeaseClient) -> None:
        self._lease = lease
        self._seen: Lease | None = None
        self._changed_ns = 0
        self._looked_ns: int | None = None
        self._sentence = ""
        self._is_new = True  # nothing was answered yet

    def sentence(self, now_ns: int) -> str:
        """Say why nothing may be written: one runs, or it is not known yet; "": none does."""
        if self._looked_ns is None or now_ns - self._looked_ns >= _EVERY_NS:
            self._looked_ns = now_ns
            self._sentence = self._look(now_ns)
        return self._sentence

    def _look(self, now_ns: int) -> str:
        place = f"lease {MANAGER_NAMESPACE}/{MANAGER_LEASE}"
        try:
            lease = self._lease.read(timeout_s=_TIMEOUT_S)
        except KubeGone:
            self._seen, self._is_new = None, False
            return ""
        except KubeDenied as error:
            return f"whether a Koordinator manager runs is not known, so no Node is written: {error}"
        except KubeError as error:
            # What was true a moment ago is not taken for changed because the server is slow.
            return f"whether a Koordinator manager runs is not known yet: {error}" if self._is_new else self._sentence
        self._is_new = False
        if self._seen is None or lease.metadata.resourceVersion != self._seen.metadata.resourceVersion:
            self._seen, self._changed_ns = lease, now_ns
        holder = lease.spec.holderIdentity or ""
        lasts_ns = (lease.spec.leaseDurationSeconds or _DURATION_S) * NS_PER_S
        if not holder or now_ns - self._changed_ns > lasts_ns:
            return ""
        return f"a Koordinator manager runs ({holder[:80]} holds {place}): batch and mid resources are left to it"
