"""What a pod requests, what of that the kubelet granted, its limits and its Kubernetes QoS class.

A tenant may change `resources` of its running pods to anything (pods/resize); the kubelet bounds them, not the
specification. Everything that counts requests or limits of pods and containers takes them from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Final

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.kube.cache.objects import Container, ContainerStatus, Pod, PodStatus, ResourceRequirements
from koordebpf.quantity import Quantity, parse_amount, parse_quantity
from koordebpf.slo.pods.qos import kube_qos_of
from koordebpf.state.pods.resources import (
    RESIZABLE,
    ContainerKind,
    Effective,
    EffectiveContainer,
    Quantities,
    is_of_level,
)

_Written = dict[str, str | int | float]
RESIZE_PENDING: Final = "PodResizePending"
RESIZE_IN_PROGRESS: Final = "PodResizeInProgress"
_PENDING: Final = ("Proposed", "Deferred", "Infeasible")  # status.resize, before Kubernetes 1.33
_EMPTY: Final = ResourceRequirements()
_UNREADABLE_QOS: Final = "Burstable"  # Why: a pod that cannot be read is neither the first victim nor spared


class _Resize(msgspec.Struct, frozen=True, gc=False):
    # What the kubelet says of a resize: it waits, it can never be granted on this node, it is being carried out.
    # Source: the two conditions, since Kubernetes 1.33; status.resize before.
    is_pending: bool
    is_refused: bool
    is_in_progress: bool


def effective(pod: Pod) -> Effective:
    """Return what a pod has, whatever is asked for.

    A tenant may ask for anything, and the kubelet answers later. What is only asked for must not evict a neighbour or
    protect memory, so that it does not count here. kube-scheduler counts it: see `scheduled_requests`.

    Requests:  the larger of what is allocated and actual. Of a container of which the status tells neither, those of
               the specification, but nothing while a resize waits. Of a pod's own level of which the status tells
               neither, those of the specification: kubelets that do not report it do not resize it.
    Limits:    those of the specification, and while it shrinks the actual ones if they are larger. While a resize
               waits, the actual ones; where the status tells nothing they are not known. A CPU limit is not below the
               request: what the status tells may be a quota that a hook made of this very limit.
    Class:     status.qosClass, or else what requests and limits of the specification make.
    A resize waits where the kubelet deferred or refused it, or has not answered: requests differ from those allocated.
    An init container that ends cannot be resized.

    Cost:    4 µs with three containers that are not being resized, 25 µs where they are.
    """
    kube_qos = pod.status.qosClass
    try:
        return _granted(pod, kube_qos or _computed_qos(pod))
    except ConfigError as error:
        specified = _specified(pod, kube_qos or _UNREADABLE_QOS)
        return msgspec.structs.replace(nothing_granted(specified), problem=str(error))


def nothing_granted(its: Effective) -> Effective:
    """Return a pod that requests nothing of what may be resized, and of whose limits on that nothing is known."""
    made = tuple(
        EffectiveContainer(
            each.name, each.kind, _not_resizable(each.requests), _not_resizable(each.limits), not each.limits
        )
        for each in its.every
    )
    has_limits = its.level is not None and bool(its.level.limits)
    return msgspec.structs.replace(its, every=made, level=None, is_limit_known=not has_limits)


def kube_qos_of_pod(pod: Pod) -> str:
    """Return the Kubernetes QoS class of a pod as `effective` does.

    Cost:    0.1 µs where the status has it.
    """
    return pod.status.qosClass or effective(pod).kube_qos


def scheduled_requests(pod: Pod) -> dict[str, Quantity]:
    """Return what kube-scheduler counts for a pod, of each resource that it requests.

    Until a resize is done it counts the largest of specified, allocated and actual requests, so that no other pod takes
    the room; of one that was refused those that are allocated and actual.

    Source:  k8s.io/component-helpers resource.PodRequests, with the resources of statuses.
    Raises:  ConfigError: a quantity is none, or negative.
    """
    specified, status = _specified(pod, pod.status.qosClass), pod.status
    is_refused, statuses, path = _resize_of(status).is_refused, _statuses(status), f"pod {pod.key} status"
    every = []
    for each in specified.every:
        found = statuses.get(each.name)
        if each.kind == "init" or found is None or found.resources is None:
            every.append(each)
            continue
        requests = _scheduled(
            each.requests, found.resources, found.allocatedResources, f"{path}[{each.name}]", is_refused=is_refused
        )
        every.append(EffectiveContainer(each.name, each.kind, requests, {}))
    level = specified.level
    if level is not None and level.requests and status.resources is not None:
        counted = _scheduled(level.requests, status.resources, status.allocatedResources, path, is_refused=is_refused)
        level = ResourceRequirements({name: counted.get(name, 0) for name in level.requests}, level.limits)
    its = msgspec.structs.replace(specified, every=tuple(every), level=level)
    names = dict.fromkeys(its.overhead)
    for each in its.every:
        names |= dict.fromkeys((*each.requests, *each.limits))
    if level is not None:
        names |= dict.fromkeys(name for name in (*(level.requests or ()), *(level.limits or ())) if is_of_level(name))
    return {name: its.request(name) for name in names}


def possible_limits(pod: Pod, resource: str) -> dict[str, Quantity]:
    """Return the largest limit by which the kubelet may have written the files of a container, by its name.

    Those without one are left out, and those of which nothing is known for sure, or of which a quantity is none.
    While a container is resized its files are those of the old limit or of the new one: the larger counts. Of a resize
    that was refused it is the old one.

    Source:  status.containerStatuses[].resources, since Kubernetes 1.33 by default. A kubelet that writes none has not
             changed a file since the pod was made: where its specification has been edited since, nothing is known.
    """
    status = pod.status
    is_refused = _resize_of(status).is_refused
    # metadata.generation counts edits of a pod since 1.33; status.resize is of older API servers.
    is_edited = bool(status.resize) or pod.metadata.generation > 1
    statuses = {each.name: each for each in (*(status.containerStatuses or ()), *(status.initContainerStatuses or ()))}
    specified = _specified(pod, status.qosClass)
    # A kubelet may report a level of pods that have none: what it adds up of their containers.
    actual_level = specified.level if specified.level is None or status.resources is None else status.resources
    found: dict[str, Quantity] = {}
    for each in specified.every:
        reported = statuses.get(each.name)
        if reported is None or (reported.resources is None and is_edited):
            continue
        actual = each.limits if reported.resources is None else reported.resources.limits or {}
        states = [(actual, actual_level)]
        if not is_refused:
            states.append((each.limits, specified.level))
        try:
            limits = [
                msgspec.structs.replace(specified, level=level).limit_of(
                    msgspec.structs.replace(each, limits=limits), resource
                )
                for limits, level in states
            ]
        except ConfigError:
            continue  # the agent says so
        known = [limit for limit in limits if limit is not None]
        if known and len(known) == len(limits):
            found[each.name] = max(known)
    return found


def _granted(pod: Pod, kube_qos: str) -> Effective:
    spec, status = pod.spec, pod.status
    specified, statuses, resize = _specified(pod, kube_qos), _statuses(status), _resize_of(status)
    of_level = _level_status(pod)
    if not resize.is_pending and (of_level is None or _is_as_asked(spec.resources, of_level)):
        if not statuses:
            return specified
        lasting = [*spec.containers, *(each for each in spec.initContainers or () if each.restartPolicy == "Always")]
        if all(_is_as_asked(each.resources, statuses.get(each.name)) for each in lasting):
            return specified
    path = f"pod {pod.key} status"
    # It is not granted, by the kubelet's word or as far as the status shows.
    waits = resize.is_pending or any(
        _is_unanswered(asked, found, where, is_in_progress=resize.is_in_progress)
        for asked, found, where in _reported(specified, statuses, of_level, path)
    )
    made = []
    for each in specified.every:
        if each.kind == "init":
            made.append(each)
            continue
        found = statuses.get(each.name, ContainerStatus())
        has = _resized(each.requests, each.limits, found, resize, f"{path}[{each.name}]", waits=waits)
        made.append(EffectiveContainer(each.name, each.kind, *has))
    level, is_known = specified.level, True
    if level is not None and of_level is not None:
        requests, limits, is_known = _resized(
            level.requests or {}, level.limits or {}, of_level, resize, path, waits=waits
        )
        level = ResourceRequirements(requests, limits)
    return msgspec.structs.replace(specified, every=tuple(made), level=level, is_limit_known=is_known)


# As asked for, whatever is granted.
def _specified(pod: Pod, kube_qos: str) -> Effective:
    spec = pod.spec
    made = [_container(each, "main") for each in spec.containers]
    if spec.initContainers:
        made += [
            _container(each, "sidecar" if each.restartPolicy == "Always" else "init") for each in spec.initContainers
        ]
    return Effective(pod.key, kube_qos, tuple(made), spec.resources, overhead=spec.overhead or {})


def _container(container: Container, kind: ContainerKind) -> EffectiveContainer:
    resources = container.resources or _EMPTY
    return EffectiveContainer(container.name, kind, resources.requests or {}, resources.limits or {})


# Of the specification: no resize changes the class. Where a pod has resources of its own level, they alone count.
# Source: k8s.io/kubernetes pkg/apis/core/v1/helper/qos, ComputePodQOS.
def _computed_qos(pod: Pod) -> str:
    specified = _specified(pod, "")
    path = f"pod {pod.key} spec.containers.resources"
    if specified.level is None:
        amounts = [(_amounts(each.requests, path), _amounts(each.limits, path)) for each in specified.every]
        return kube_qos_of(amounts)
    requests = _amounts(specified.level.requests, f"pod {pod.key} spec.resources")
    limits = _amounts(specified.level.limits, f"pod {pod.key} spec.resources")
    if _is_level_limited(specified):
        for name in RESIZABLE:
            if name not in requests and specified.is_requested(name):
                requests[name] = _decimal(specified.largest_request(name))
    return kube_qos_of([(requests, limits)])


# Where a pod's own level has a limit, the API server adds what containers request to its requests; and containers' huge
# pages to its limits. Source: k8s.io/kubernetes pkg/apis/core/v1/defaults.go, defaultPodRequests.
def _is_level_limited(specified: Effective) -> bool:
    level = specified.level or _EMPTY
    if level.limits or not level.requests:
        return bool(level.limits)
    names = (name for each in specified.every for name in each.limits)
    return any(name not in RESIZABLE and is_of_level(name) and name not in level.requests for name in names)


def _amounts(quantities: Quantities | None, path: str) -> dict[str, Decimal]:
    return {name: parse_quantity(written, f"{path}.{name}") for name, written in (quantities or {}).items()}


def _decimal(amount: Quantity) -> Decimal:
    return Decimal(f"{amount.unscaled}E{amount.scale}")


def _statuses(status: PodStatus) -> dict[str, ContainerStatus]:
    return {
        each.name: each
        for each in (*(status.containerStatuses or ()), *(status.initContainerStatuses or ()))
        if each.resources is not None or each.allocatedResources is not None
    }


# The status of the pod's own level, as that of a container; None: there is none, or the level has no resources.
def _level_status(pod: Pod) -> ContainerStatus | None:
    asked, status = pod.spec.resources, pod.status
    if asked is None or (status.resources is None and status.allocatedResources is None):
        return None
    allocated, actual = status.allocatedResources, status.resources
    if overhead := pod.spec.overhead:
        path = f"pod {pod.key} status"
        requests, limits = asked.requests or {}, asked.limits or {}
        allocated = _without_overhead(allocated, requests, overhead, path)
        if actual is not None:
            actual = ResourceRequirements(
                _without_overhead(actual.requests, requests, overhead, path),
                _without_overhead(actual.limits, limits, overhead, path),
            )
    return ContainerStatus(allocatedResources=allocated, resources=actual)


# The kubelet reports a pod's own level with its overhead, which the specification does not name: both together are what
# is asked for. While a resize waits the overhead counts twice, as for kube-scheduler.
# Source: k8s.io/kubernetes pkg/kubelet/kubelet_pods.go, generateAPIPodStatus and convertToAPIPodLevelResourcesStatus.
def _without_overhead(reported: _Written | None, asked: Quantities, overhead: Quantities, path: str) -> _Written | None:
    if reported is None:
        return None
    found = dict(reported)
    for name in RESIZABLE:
        if name in reported and name in asked and name in overhead:
            whole = parse_amount(asked[name], path).plus(parse_amount(overhead[name], path))
            if _decimal(whole) == parse_quantity(reported[name], f"{path}.{name}"):
                found[name] = asked[name]
    return found


def _resize_of(status: PodStatus) -> _Resize:
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


def _is_as_asked(resources: ResourceRequirements | None, status: ContainerStatus | None) -> bool:
    if status is None:
        return True
    asked = resources or _EMPTY
    return asked == status.resources and status.allocatedResources in (None, asked.requests)


# What is asked for and the status of it, where there is one, and its path.
def _reported(
    specified: Effective, statuses: Mapping[str, ContainerStatus], of_level: ContainerStatus | None, path: str
) -> Iterable[tuple[Quantities, ContainerStatus, str]]:
    for each in specified.every:
        if each.kind != "init" and (found := statuses.get(each.name)) is not None:
            yield _defaulted(each.requests, each.limits), found, f"{path}[{each.name}]"
    if specified.level is not None and of_level is not None:
        yield _defaulted(specified.level.requests, specified.level.limits), of_level, path


# Kubelets that report no allocatedResources report the allocated memory in `resources`, but of CPU the actual request.
def _is_unanswered(asked: Quantities, status: ContainerStatus, path: str, *, is_in_progress: bool) -> bool:
    base: Quantities | None = status.allocatedResources
    names: tuple[str, ...] = RESIZABLE
    if base is None:
        if status.resources is None:
            return False
        base = _defaulted(status.resources.requests, status.resources.limits)
        names = ("memory",) if is_in_progress else RESIZABLE
    return any(
        name not in base or _is_other(asked[name], base[name], f"{path}.{name}") for name in names if name in asked
    )


def _is_other(one: str | int | float, two: str | int | float, path: str) -> bool:
    return one != two and parse_quantity(one, path) != parse_quantity(two, path)


# What a container or a pod's own level has while it is resized, and whether its limits are known.
def _resized(
    requests: Quantities, limits: Quantities, status: ContainerStatus, resize: _Resize, path: str, *, waits: bool
) -> tuple[_Written, _Written, bool]:
    has = _limits(limits, status, path, waits=waits, is_in_progress=resize.is_in_progress)
    is_known = _has_amounts(status.resources) or has.keys() == limits.keys()
    return _requests(requests, limits, status, resize, path), has, is_known


def _requests(asked: Quantities, limits: Quantities, status: ContainerStatus, resize: _Resize, path: str) -> _Written:
    requests, actual = _defaulted(asked, limits), status.resources
    reported: list[Quantities] = [status.allocatedResources] if status.allocatedResources is not None else []
    reported += [_defaulted(actual.requests, actual.limits)] if actual is not None else []
    counts = not (reported or resize.is_pending)
    found = _not_resizable(asked)
    # A name that only the status has is what a hook wrote, such as the weight of a batch pod.
    for name in RESIZABLE:
        amount = _largest(name, [*reported, requests] if counts else reported, path)
        if name in requests:
            found[name] = 0 if amount is None else amount  # an absent one would be taken from the limit
    return found


def _limits(written: Quantities, status: ContainerStatus, path: str, *, waits: bool, is_in_progress: bool) -> _Written:
    if not (waits or is_in_progress):
        return dict(written)
    actual = (status.resources.limits if status.resources else None) or {}
    floor: list[Quantities] = [status.allocatedResources] if status.allocatedResources else []
    floor += [_defaulted(status.resources.requests, status.resources.limits)] if status.resources else []
    found = _not_resizable(written)
    for name in RESIZABLE:
        if name not in written:
            continue
        counted: list[Quantities] = [actual]
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


def _not_resizable(written: Quantities) -> _Written:
    return {name: amount for name, amount in written.items() if name not in RESIZABLE}


# The API server writes a limit without a request as both; a Pod from a file has not been there.
def _defaulted(requests: Quantities | None, limits: Quantities | None) -> Quantities:
    return {name: limits[name] for name in RESIZABLE if limits and name in limits} | dict(requests or {})


def _scheduled(
    asked: Quantities, actual: ResourceRequirements, allocated: Quantities | None, path: str, *, is_refused: bool
) -> _Written:
    counted: list[Quantities] = [] if is_refused else [asked]
    counted += [each for each in (actual.requests, allocated) if each]
    names = dict.fromkeys(name for each in counted for name in each)
    return {name: amount for name in names if (amount := _largest(name, counted, path)) is not None}


def _largest(name: str, counted: list[Quantities], path: str) -> str | int | float | None:
    amounts = [each[name] for each in counted if name in each]
    if len(set(amounts)) < 2:
        return amounts[0] if amounts else None
    return max(amounts, key=lambda amount: parse_quantity(amount, f"{path}.{name}"))
