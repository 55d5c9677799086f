"""Puts the parts for batch and mid resources together."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from koordebpf.controller.batch.facts import READERS, MetricRecord, PodRecord, TopologyRecord
from koordebpf.controller.batch.manager import MANAGER_LEASE, MANAGER_NAMESPACE, KoordManager
from koordebpf.controller.batch.part import BatchResources
from koordebpf.controller.batch.publish import Publisher
from koordebpf.kube.clients.lease import LeaseClient
from koordebpf.kube.clients.nodeslos import NodeMeta
from koordebpf.kube.colocation.nodes import decode_colocation_node
from koordebpf.kube.colocation.source import ColocationSource
from koordebpf.kube.colocation.writes import ColocationWriter
from koordebpf.kube.http.transport import Transport, open_cluster
from koordebpf.slo.manager.keys import COLOCATION_KEY

log = logging.getLogger("koordebpf")

Source = ColocationSource[PodRecord, MetricRecord, TopologyRecord]


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
