"""What the decision reads of a Pod object beside its identity."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class PodTerms(msgspec.Struct, frozen=True):
    """What the decision reads of a Pod object beside its identity."""

    is_enabled: bool = False  # label koordinator.sh/eviction-enabled
    own_priority: int = 0  # annotation koordinator.sh/eviction-priority
    priority: int = 0  # spec.priority, or the default of its band where that is absent or 0
    sub_priority: int = 0  # label koordinator.sh/priority, else `priority`
    memory_resource: str = "memory"  # what its band asks for: native, batch or mid memory
    memory_request_bytes: int = 0  # of that resource: what is granted of it
    cpu_resource: str = "cpu"  # as memory_resource
    cpu_request_millicpu: int = 0  # of that resource: what is granted of it
    batch_cpu_millicpu: int = 0  # of batch-cpu, whatever its band asks for
    priority_class: str = ""  # spec.priorityClassName
    workload: str | None = None  # its controller, as namespace/kind/name
    started_s: float | None = None  # status.startTime, seconds since the epoch
    is_ready: bool = False  # condition Ready is True: what a PodDisruptionBudget calls healthy
    labels: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}
    native_memory_request_bytes: int | None = None  # of the containers; None: one of them requests none
    katalyst_requests: Mapping[str, int] = {}  # of Katalyst's resources: reclaimed ones, and bandwidth
    grace_s: int = 30  # spec.terminationGracePeriodSeconds
    deletion_grace_s: int | None = None  # metadata.deletionGracePeriodSeconds; None: it is not being deleted
    is_over: bool = False  # it is being deleted, and none of its containers runs
    deleted_s: float | None = None  # when its deletion was asked for, seconds since the epoch; None: not, or not known
    problem: str | None = None  # which quantity cannot be read: such a pod requests nothing
