"""What a node can be short of: resources, their units, and what is counted of them. Pure.

A new resource is a `Resource` and its `Dimension`s beside the feature that judges it; here are memory and CPU. In JSON
every amount stands beside the name of its resource, and is in its unit: `{"resource": "memory", "value": 1234}`.
"""

from __future__ import annotations

from typing import NewType

import msgspec

from koordebpf.state.pods.requests import BATCH_CPU, BATCH_MEMORY, MID_CPU, MID_MEMORY, NATIVE_CPU, NATIVE_MEMORY
from koordebpf.units import format_bytes, format_millicpu


class Unit(msgspec.Struct, frozen=True, cache_hash=True, omit_defaults=True):
    """In what a resource is counted. Metrics are in the base unit `metric`, of `per_metric`; "": in this one."""

    name: str
    metric: str = ""
    per_metric: int = 1

    def format(self, value: int) -> str:
        """Return a value for people.

        >>> Unit("inodes").format(1200)
        '1200 inodes'
        >>> Unit("pods").format(1)
        '1 pod'
        """
        if (text := _TEXTS.get(self.name)) is not None:
            return text(value)
        return f"{value} {self.name.removesuffix('s') if value == 1 else self.name}"


BYTES = Unit("bytes")
MILLICPU = Unit("millicpu", "cpu_cores", 1000)
PODS = Unit("pods")  # that are asked for by name: no amount is short
_TEXTS = {BYTES.name: format_bytes, MILLICPU.name: format_millicpu}  # of every other unit its name

Resource = NewType("Resource", str)  # something that pods take of a node, by its name as in sentences

MEMORY = Resource("memory")
CPU = Resource("CPU")
_UNITS = {MEMORY: BYTES, CPU: MILLICPU}


def unit_of(resource: Resource) -> Unit:
    """Return in what a resource is counted: memory and CPU as everywhere, any other in the last word of its name.

    >>> unit_of(MEMORY).format(1024), unit_of(Resource("forced pods")).format(2)
    ('1.0 KiB', '2 pods')
    """
    return _UNITS.get(resource) or Unit(resource.rpartition(" ")[2])


class Amount(msgspec.Struct, frozen=True):
    """So much of a resource."""

    resource: Resource
    value: int

    def __str__(self) -> str:
        return unit_of(self.resource).format(self.value)


class Dimension(msgspec.Struct, frozen=True, cache_hash=True, omit_defaults=True):
    """One way to count what pods take of a resource: what they use, or what they request.

    `name` is unique. What is used ends with the processes, what is requested with the pod's object. `asked` is the
    Kubernetes resource that is requested; "" is `name`.
    """

    name: str
    resource: Resource
    is_use: bool = False
    asked: str = ""


USED = Dimension("used", MEMORY, is_use=True)
USED_CPU = Dimension("used cpu", CPU, is_use=True)
BE_REQUESTED_CPU = Dimension("best-effort cpu", CPU, asked=BATCH_CPU)  # of pods with the label BE, whatever their band
_MEMORY_REQUESTS = {name: Dimension(name, MEMORY) for name in (BATCH_MEMORY, MID_MEMORY, NATIVE_MEMORY)}
_CPU_REQUESTS = {name: Dimension(name, CPU) for name in (BATCH_CPU, MID_CPU, NATIVE_CPU)}
_KNOWN = {each.name: each for each in (USED, USED_CPU, BE_REQUESTED_CPU)} | _MEMORY_REQUESTS | _CPU_REQUESTS


def dimension(name: str) -> Dimension:
    """Return what is counted under this name: of memory or CPU in use, or of a resource that pods request.

    Raises:  KeyError: no such dimension of memory or CPU.
    """
    return _KNOWN[name]
