"""What a pod's containers ask for, what of that the kubelet granted, and their limits.

A tenant may change `resources` of its running pods to anything (pods/resize); the kubelet bounds them, not the
specification. Everything that counts requests or limits of containers takes them from here.
"""

from __future__ import annotations

from typing import Final

import msgspec

from koordebpf.kube.cache.objects import Container, ContainerStatus, Pod, ResourceRequirements
from koordebpf.quantity import parse_quantity

Quantities = dict[str, str | int | float]

# Those that pods/resize may change. Of every other resource the specification is what the pod was admitted with.
RESIZABLE: Final = ("cpu", "memory")
RESIZE_PENDING: Final = "PodResizePending"
RESIZE_IN_PROGRESS: Final = "PodResizeInProgress"
_PENDING: Final = ("Proposed", "Deferred", "Infeasible")  # status.resize, before Kubernetes 1.33


class EffectiveContainers(msgspec.Struct, frozen=True, gc=False):
    """The containers of a pod, each with `resources` that are in effect.

    `unknown`: names of those that have limits, and nothing tells which. They are left alone: no limit is another thing.
    """

    main: tuple[Container, ...]
    init: tuple[Container, ...]
    unknown: frozenset[str] = frozenset()

    @property
    def every(self) -> tuple[Container, ...]:
        """Both."""
        return (*self.main, *self.init)


class _Resize(msgspec.Struct, frozen=True, gc=False):
    # What the kubelet says of a resize: it waits, it can never be granted on this node, it is being carried out.
    # Source: the two conditions, since Kubernetes 1.33; status.resize before.
    is_pending: bool
    is_refused: bool
    is_in_progress: bool


def granted(pod: Pod) -> EffectiveContainers:
    """Return the containers with what they have, whatever is asked for.

    Requests:  the larger of what is allocated and actual. Of a container of which the status tells neither, those of
               the specification, but nothing while a resize waits.
    Limits:    those of the specification, and while it shrinks the actual ones if they are larger. While a resize
               waits, the actual ones; where the status tells nothing they are `unknown`. A CPU limit is not below the
               request: what the status tells may be a quota that a hook made of this very limit.
    A resize waits where the kubelet deferred or refused it, or has not answered: requests differ from those allocated.
    An init container that ends cannot be resized.

    Raises:  ConfigError: a quantity of a container that is being resized is none.
    Cost:    3 µs with three containers that are not being resized, 25 µs where they are.
    """
    spec, status = pod.spec, pod.status
    statuses = {
        each.name: each
        for each in (*(status.containerStatuses or ()), *(status.initContainerStatuses or ()))
        if each.resources is not None or each.allocatedResources is not None
    }
    init, lasting = spec.initContainers or (), spec.containers
    if init:
        lasting = [*lasting, *(each for each in init if each.restartPolicy == "Always")]
    resize = _resize_of(pod)
    if not resize.is_pending and all(_is_as_asked(each, statuses.get(each.name)) for each in lasting):
        return EffectiveContainers(tuple(spec.containers), tuple(init))
    # It is not granted, by the kubelet's word or as far as the status shows.
    waits = resize.is_pending or any(
        _is_unanswered(each, found, f"pod {pod.key}", is_in_progress=resize.is_in_progress)
        for each in lasting
        if (found := statuses.get(each.name)) is not None
    )
    made, unknown = dict[str, Container](), set[str]()
    for each in lasting:
        found = statuses.get(each.name, ContainerStatus())
        path = f"pod {pod.key} status[{each.name}]"
        asked = each.resources or ResourceRequirements()
        requests = _requests(asked, found, resize, path)
        limits = _limits(asked, found, path, waits=waits, is_in_progress=resize.is_in_progress)
        if not _has_amounts(found.resources) and limits.keys() != (asked.limits or {}).keys():
            unknown.add(each.name)
        made[each.name] = msgspec.structs.replace(each, resources=ResourceRequirements(requests, limits))
    return EffectiveContainers(
        tuple(made[each.name] for each in spec.containers),
        tuple(made.get(each.name, each) for each in init),
        frozenset(unknown),
    )


def nothing_granted(pod: Pod) -> EffectiveContainers:
    """Return the containers with nothing that a resize may change, and limits unknown: for an unusable status."""
    spec, names = pod.spec, set[str]()
    for each in (*spec.containers, *(spec.initContainers or ())):
        if each.resources is not None and each.resources.limits:
            names.add(each.name)
    return EffectiveContainers(
        tuple(map(_with_nothing, spec.containers)),
        tuple(map(_with_nothing, spec.initContainers or ())),
        frozenset(names),
    )


def is_resize_refused(pod: Pod) -> bool:
    """Tell whether the kubelet says that a resize can never be granted on this node."""
    return _resize_of(pod).is_refused


def _resize_of(pod: Pod) -> _Resize:
    status = pod.status
    is_pending, is_refused = status.resize in _PENDING, status.resize == "Infeasible"
    is_in_progress = status.resize == "InProgress"
    for each in status.conditions or ():
        if each.status == "False":
            continue
        if each.type == RESIZE_PENDING:
            is_pending, is_refused = True, is_refused or each.reason == "Infeasible"
        elif each.type == RESIZE_IN_PROGRESS:
            is_in_progress = True
    return _Resize(is_pending, is_refused, is_in_progress)


def _is_as_asked(container: Container, status: ContainerStatus | None) -> bool:
    if status is None:
        return True
    asked = container.resources or ResourceRequirements()
    return asked == status.resources and status.allocatedResources in (None, asked.requests)


# Kubelets that report no allocatedResources report the allocated memory in `resources`, but of CPU the actual request.
def _is_unanswered(container: Container, status: ContainerStatus, path: str, *, is_in_progress: bool) -> bool:
    asked = _defaulted(container.resources)
    base = status.allocatedResources
    names: tuple[str, ...] = RESIZABLE
    if base is None:
        if status.resources is None:
            return False
        base = _defaulted(status.resources)
        names = ("memory",) if is_in_progress else RESIZABLE
    path = f"{path} status[{container.name}]"
    return any(
        name not in base or _is_other(asked[name], base[name], f"{path}.{name}") for name in names if name in asked
    )


def _is_other(one: str | int | float, two: str | int | float, path: str) -> bool:
    return one != two and parse_quantity(one, path) != parse_quantity(two, path)


def _requests(asked: ResourceRequirements, status: ContainerStatus, resize: _Resize, path: str) -> Quantities:
    requests = _defaulted(asked)
    reported = [status.allocatedResources] if status.allocatedResources is not None else []
    reported += [_defaulted(status.resources)] if status.resources is not None else []
    counts = not (reported or resize.is_pending)
    found: Quantities = {name: amount for name, amount in (asked.requests or {}).items() if name not in RESIZABLE}
    # A name that only the status has is what a hook wrote, such as the weight of a batch pod.
    for name in RESIZABLE:
        amount = _largest(name, [*reported, requests] if counts else reported, path)
        if name in requests:
            found[name] = 0 if amount is None else amount  # an absent one would be taken from the limit
    return found


def _limits(
    asked: ResourceRequirements, status: ContainerStatus, path: str, *, waits: bool, is_in_progress: bool
) -> Quantities:
    written, actual = asked.limits or {}, (status.resources.limits if status.resources else None) or {}
    if not (waits or is_in_progress):
        return written
    floor = [each for each in (status.allocatedResources, _defaulted(status.resources)) if each]
    found: Quantities = {name: amount for name, amount in written.items() if name not in RESIZABLE}
    for name in RESIZABLE:
        if name not in written:
            continue
        counted = [actual]
        if not waits:
            counted.append(written)
        elif name == "cpu" and name in actual:
            counted += floor
        if (amount := _largest(name, counted, path)) is not None:
            found[name] = amount
    return found


# Where a status has amounts, a limit that it lacks is none.
def _has_amounts(resources: ResourceRequirements | None) -> bool:
    return resources is not None and bool(resources.limits or resources.requests)


def _with_nothing(container: Container) -> Container:
    if (asked := container.resources) is None:
        return container
    requests, limits = (
        {name: amount for name, amount in (each or {}).items() if name not in RESIZABLE}
        for each in (asked.requests, asked.limits)
    )
    return msgspec.structs.replace(container, resources=ResourceRequirements(requests, limits))


# The API server writes a limit without a request as both; a Pod from a file has not been there.
def _defaulted(resources: ResourceRequirements | None) -> Quantities:
    if resources is None:
        return {}
    limits = resources.limits or {}
    return {name: limits[name] for name in RESIZABLE if name in limits} | (resources.requests or {})


def _largest(name: str, counted: list[Quantities], path: str) -> str | int | float | None:
    amounts = [each[name] for each in counted if name in each]
    if len(set(amounts)) < 2:
        return amounts[0] if amounts else None
    return max(amounts, key=lambda amount: parse_quantity(amount, f"{path}.{name}"))
