"""What a pod has, as values: requests and limits of its own level and of its containers, and their sums."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final, Literal

import msgspec

from koordebpf.kube.cache.objects import ResourceRequirements
from koordebpf.quantity import Quantity, parse_amount

Quantities = Mapping[str, str | int | float]
ContainerKind = Literal["main", "sidecar", "init"]

# Those that pods/resize may change. Of every other resource the specification is what the pod was admitted with.
RESIZABLE: Final = ("cpu", "memory")


class EffectiveContainer(msgspec.Struct, frozen=True, gc=False):
    """One container with the requests and limits that are in effect, as they are written.

    `kind`            sidecar: an init container that is always restarted; init: one that ends.
    `is_limit_known`  False: it has limits, and nothing tells which. They are left alone: no limit is another thing.
    """

    name: str
    kind: ContainerKind
    requests: Quantities
    limits: Quantities
    is_limit_known: bool = True


class Effective(msgspec.Struct, frozen=True, gc=False):
    """A pod's requests and limits that are in effect: by them it evicts, is protected and is limited.

    `key`             `namespace/name`, for errors.
    `kube_qos`        Guaranteed, Burstable or BestEffort.
    `every`           the containers: main ones, then init containers, each in their order.
    `level`           the resources of the pod's own level (spec.resources); None: it has none.
    `is_limit_known`  False: the pod's own level has limits, and nothing tells which.
    `overhead`        of the pod itself, on top of what it requests and of its limits.
    `problem`         which quantity of the status, or of those that make the class, cannot be read. Such a pod requests
                      nothing of what may be resized, and its limits are not known.
    """

    key: str
    kube_qos: str
    every: tuple[EffectiveContainer, ...] = ()
    level: ResourceRequirements | None = None
    is_limit_known: bool = True
    overhead: Quantities = {}
    problem: str | None = None

    @property
    def main(self) -> tuple[EffectiveContainer, ...]:
        """The containers that are no init containers."""
        return tuple(each for each in self.every if each.kind == "main")

    def names_any(self, resources: AbstractSet[str]) -> bool:
        """Tell whether the pod has any of these, which no pod has at its own level."""
        for each in self.every:
            for written in (each.requests, each.limits):
                if written and not resources.isdisjoint(written):
                    return True
        return not resources.isdisjoint(self.overhead)

    def request(self, resource: str) -> Quantity:
        """Return what the pod has of what it requests of one resource, whichever it is.

        That is what its own level requests, or else the largest moment of its containers; plus the overhead.

        Source:  k8s.io/component-helpers resource.PodRequests.
        Raises:  ConfigError: a quantity is none, or negative.
        """
        found = self.level_request(resource) if self.level is not None else None
        return self._with_overhead(self.largest_request(resource) if found is None else found, resource)

    def extended_request(self, resource: str) -> Quantity:
        """Return what containers and sidecars request together, as Koordinator counts its resources.

        Source:  koordinator pkg/util/extended_resource.go.
        Raises:  ConfigError: a quantity is none, or negative.
        """
        found = Quantity()
        for each in self.every:
            if each.kind != "init":
                found = found.plus(self.request_of(each, resource))
        return found

    def request_of(self, container: EffectiveContainer, resource: str) -> Quantity:
        """Return what one container requests.

        Raises:  ConfigError: it is no quantity, or negative.
        """
        # The API server writes a limit without a request as both; a Pod from a file has not been there.
        for written in (container.requests, container.limits):
            if resource in written:
                return parse_amount(written[resource], self._path(container, resource))
        return Quantity()

    def limit(self, resource: str) -> Quantity | None:
        """Return what the kubelet limits the pod to; None: it does not, or its limits are not known.

        Source:  k8s.io/kubernetes pkg/kubelet/cm/helpers_linux.go, ResourceConfigForPod.
        Raises:  ConfigError: a quantity is none, or negative.
        """
        found = self.level_limit(resource)
        if found is None:
            if self.level is not None and resource in (self.level.limits or ()) and is_of_level(resource):
                return None  # it says 0, whatever its containers say
            limits = [(self._own_limit(each, resource), each.kind) for each in self.every]
            if not limits or not all(each.unscaled for each, _ in limits):
                return None
            found = largest_moment(limits)
        return self._with_overhead(found, resource)

    def limit_of(self, container: EffectiveContainer, resource: str) -> Quantity | None:
        """Return what the kubelet limits a container to, by its own limit or that of the pod's level; None: nothing.

        Source:  k8s.io/kubernetes pkg/kubelet/kuberuntime/kuberuntime_container_linux.go, getMemoryLimit.
        Raises:  ConfigError: it is no quantity, or negative.
        """
        found = self._own_limit(container, resource)
        return found if found.unscaled else self.level_limit(resource)

    def is_limit_of_known(self, container: EffectiveContainer, resource: str) -> bool:
        """Tell whether that is known. No resize changes limits on extended resources."""
        if resource not in RESIZABLE:
            return True
        return container.is_limit_known and (self.is_limit_known or resource in container.limits)

    def level_limit(self, resource: str) -> Quantity | None:
        """Return the limit that the pod's own level has, without overhead; None: none.

        Raises:  ConfigError: it is no quantity, or negative.
        """
        written = self.level.limits if self.level is not None else None
        if not written or resource not in written or not is_of_level(resource):
            return None
        found = parse_amount(written[resource], f"pod {self.key} spec.resources.limits.{resource}")
        return found if found.unscaled else None

    def level_request(self, resource: str) -> Quantity | None:
        """Return what the pod's own level requests, without overhead; None: what its containers request counts.

        Source:  of a limit alone, k8s.io/kubernetes pkg/apis/core/v1/defaults.go, defaultPodRequests: it is the request
                 too where no container requests the resource. A Pod from a file has not been there.
        Raises:  ConfigError: it is no quantity, or negative.
        """
        level = self.level or ResourceRequirements()
        if not is_of_level(resource):
            return None
        written = level.requests or {}
        if resource not in written:
            written = level.limits or {}
            if resource not in written or self.is_requested(resource):
                return None
        return parse_amount(written[resource], f"pod {self.key} spec.resources.{resource}")

    def is_requested(self, resource: str) -> bool:
        """Tell whether any container names the resource."""
        return any(resource in each.requests or resource in each.limits for each in self.every)

    def largest_request(self, resource: str) -> Quantity:
        """Return what the containers request at the moment at which they need most, without overhead.

        Raises:  ConfigError: a quantity is none, or negative.
        """
        return largest_moment((self.request_of(each, resource), each.kind) for each in self.every)

    def _own_limit(self, container: EffectiveContainer, resource: str) -> Quantity:
        written = container.limits.get(resource)
        return Quantity() if written is None else parse_amount(written, self._path(container, resource))

    def _with_overhead(self, found: Quantity, resource: str) -> Quantity:
        overhead = self.overhead.get(resource) if self.overhead else None
        if overhead is None:
            return found
        return found.plus(parse_amount(overhead, f"pod {self.key} spec.overhead.{resource}"))

    def _path(self, container: EffectiveContainer, resource: str) -> str:
        return f"pod {self.key} spec.containers[{container.name}].resources.{resource}"


def largest_moment(containers: Iterable[tuple[Quantity, ContainerKind]]) -> Quantity:
    """Return what the containers of a pod need at the moment at which they need most.

    Containers and sidecars run together. Init containers run one after the other before that, each beside the sidecars
    that started before it.

    Source:  k8s.io/component-helpers resource.AggregateContainerRequests.
    """
    steady = peak = started = Quantity()
    for amount, kind in containers:
        if kind == "init":
            peak = max(peak, started.plus(amount))
            continue
        steady = steady.plus(amount)
        if kind == "sidecar":
            started = started.plus(amount)
    return max(steady, peak)


def is_of_level(resource: str) -> bool:
    """Tell whether a pod may have this resource at its own level.

    Source:  k8s.io/component-helpers resource.IsSupportedPodLevelResource.
    """
    return resource in RESIZABLE or resource.startswith("hugepages-")
