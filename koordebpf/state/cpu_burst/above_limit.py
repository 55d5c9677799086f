"""Whether a CPU quota is more than what kubelet writes for a limit. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.kernel.cgroup.files import MIN_QUOTA_US
from koordebpf.kube.cache.objects import Container, ContainerStatus, Pod, ResourceRequirements
from koordebpf.quantity import quantity_millicpu
from koordebpf.state.pods.effective import is_resize_refused

_STEP_MILLICPU = 10  # systemd has quotas in whole percents of a CPU: runc rounds up


class WrittenLimit(msgspec.Struct, frozen=True, gc=False):
    """The largest CPU limit of which kubelet may have written the quota, and whose it is."""

    container_id: str
    name: str  # of the pod and the container, for people
    millicpu: int


def is_above_limit(quota_us: int, period_us: int, limit_millicpu: int) -> bool:
    """Return whether it is above the quota of that limit, as kubelet, runc and systemd round it.

    >>> [is_above_limit(each, 100_000, 123) for each in (12_300, 13_000, 13_001)]
    [False, False, True]
    """
    rounded_millicpu = -(-limit_millicpu // _STEP_MILLICPU) * _STEP_MILLICPU
    return quota_us > max(rounded_millicpu * period_us // 1000, MIN_QUOTA_US)


def written_limits(pod: Pod) -> Iterator[WrittenLimit]:
    """Yield the limits of the containers that run; not of those without one, or whose limit nothing says for sure.

    While a container is resized its quota is that of the old limit or of the new one: the larger counts. Of a resize
    that was refused it is the old one.

    Source:  status.containerStatuses[].resources, since Kubernetes 1.33 by default. A kubelet that writes none has not
             changed a quota since the pod was made: where its specification has been edited since, nothing is known.
    """
    status = pod.status
    statuses = {each.name: each for each in (*(status.containerStatuses or ()), *(status.initContainerStatuses or ()))}
    is_refused = is_resize_refused(pod)
    # metadata.generation counts edits of a pod since 1.33; status.resize is of older API servers.
    is_edited = bool(status.resize) or pod.metadata.generation > 1
    for each in (*pod.spec.containers, *(pod.spec.initContainers or ())):
        found = statuses.get(each.name)
        container_id = found.containerID.partition("://")[2] if found else ""
        if found is None or not container_id or (found.resources is None and is_edited):
            continue
        try:
            limits = list(_limits(each, found, is_refused))
        except ConfigError:
            continue  # the agent says so
        if all(limits):
            yield WrittenLimit(container_id, f"{pod.key} {each.name}", max(limits))


# 0: none.
def _limits(container: Container, status: ContainerStatus, is_refused: bool) -> Iterator[int]:
    if status.resources is not None:
        yield _limit(status.resources)
    if status.resources is None or not is_refused:
        yield _limit(container.resources)


def _limit(resources: ResourceRequirements | None) -> int:
    limits = (resources.limits if resources else None) or {}
    return quantity_millicpu(limits.get("cpu", 0), "limits.cpu")
