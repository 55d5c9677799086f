"""Tries every signal on this host, attached and detached again within a second."""

from __future__ import annotations

import os
from pathlib import Path

from koordebpf.agent.scope import open_scope
from koordebpf.events.layout import check_layout
from koordebpf.kernel.cgroupfs import find_memory_hierarchy
from koordebpf.kernel.signals import KernelSignals, SignalSource
from koordebpf.kernel.support import support_of_files


def examine(node_cgroup: Path | None) -> list[SignalSource]:
    """Return how each signal is obtained here, and what is missing.

    Raises:  SupportError: no memory controller, no libbpf or no BPF objects: nothing could run.
    """
    scope = open_scope(find_memory_hierarchy(), node_cgroup)
    fd = os.open(scope.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with KernelSignals(
            hierarchy_id=scope.hierarchy.hierarchy_id,
            scan_root_fd=fd,
            node_cgroup_id=scope.node_cgroup_id,
            min_stall_ns=1 << 62,
            check_layout=check_layout,
        ) as signals:
            return [*support_of_files(scope.hierarchy), *signals.sources]
    finally:
        os.close(fd)
