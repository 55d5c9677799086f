"""Puts the parts for batch and mid resources together."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from koordebpf.controller.batch.facts import READERS, MetricRecord, PodRecord, TopologyRecord
from koordebpf.controller.batch.part import BatchResources
from koordebpf.controller.batch.publish import Publisher
from koordebpf.errors import KubeDenied, KubeError, KubeGone
from koordebpf.kube.clients.lease import Lease, LeaseClient
from koordebpf.kube.clients.nodeslos import NodeMeta
from koordebpf.kube.colocation.nodes import decode_colocation_node
from koordebpf.kube.colocation.source import ColocationSource
from koordebpf.kube.colocation.writes import ColocationWriter
from koordebpf.kube.http.transport import Transport, open_cluster
from koordebpf.slo.manager.shapes import COLOCATION_KEY
from koordebpf.units import NS_PER_S

MANAGER_NAMESPACE: Final = "koordinator-system"
MANAGER_LEASE: Final = "koordinator-manager"
_EVERY_NS: Final = 5 * NS_PER_S
_TIMEOUT_S: Final = 2.0
_DURATION_S: Final = 15  # of a Lease that says none
log = logging.getLogger("koordebpf")
Source = ColocationSource[PodRecord, MetricRecord, TopologyRecord]


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
            self._sentence = self._find(now_ns)
        return self._sentence

    def _find(self, now_ns: int) -> str:
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


class BatchParts:
    """What runs, and what ends it. `decode_node` is for the source of Nodes."""

    def __init__(self, source: Source, resources: BatchResources, transport: Transport) -> None:
        self.source = source
        self.resources = resources
        self.decode_node: Callable[[msgspec.Raw], NodeMeta] = decode_colocation_node
        self._transport = transport

    def close(self) -> None:
        """Cut the connections and end the threads."""
        self._transport.close()
        self.source.close()


def open_batch(kubeconfig: Path | None, context: str | None = None, *, adopts: bool, is_dry_run: bool) -> BatchParts:
    """Open a connection to list and watch by, and one to write and to look at the other manager's Lease by.

    Raises:  ConfigError: no API server to ask.
    """
    source: Source = ColocationSource(open_cluster(kubeconfig, context), READERS)
    transport = open_cluster(kubeconfig, context)
    writer = None if is_dry_run else ColocationWriter(transport)
    publisher = Publisher(writer, adopts=adopts, now_ns=time.monotonic_ns)
    manager = KoordManager(LeaseClient(transport, MANAGER_NAMESPACE, MANAGER_LEASE))
    log.info("batch and mid resources of Nodes are computed by %s", COLOCATION_KEY)
    return BatchParts(source, BatchResources(source, publisher, manager.sentence), transport)
