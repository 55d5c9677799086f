"""Extended resources of containers: batch-cpu and batch-memory, of the spec or of the annotation that stands for it.

Koordinator's webhook writes both. A container runtime has no extended resources, so that it is given the annotation;
where the pod's object is known, the annotation does not count: a tenant may write it, too.

Source: koordinator apis/extension/resource.go, ExtendedResourceSpec; pkg/util/extended_resource.go.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koordebpf.decoding import decoder
from koordebpf.errors import ConfigError
from koordebpf.quantity import quantity_bytes

EXTENDED_RESOURCE_ANNOTATION = "node.koordinator.sh/extended-resource-spec"  # of a Pod
BATCH_CPU = "kubernetes.io/batch-cpu"  # millicpu
BATCH_MEMORY = "kubernetes.io/batch-memory"  # bytes
MAX_MILLICPU = 8192 * 1000  # NR_CPUS with CONFIG_MAXSMP: no node has more
MAX_BYTES = (1 << 63) - 1

Quantities = Mapping[str, str | int | float]


class BatchAmounts(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """What one container asks for. 0: nothing is asked for, or no limit is written: that is no limit."""

    cpu_request_millicpu: int = 0
    cpu_limit_millicpu: int = 0
    memory_request_bytes: int = 0
    memory_limit_bytes: int = 0


class _Written(msgspec.Struct):
    requests: dict[str, str | int | float] | None = None
    limits: dict[str, str | int | float] | None = None


class _Spec(msgspec.Struct):
    containers: dict[str, _Written] | None = None


def batch_amounts(requests: Quantities | None, limits: Quantities | None, path: str) -> BatchAmounts | None:
    """Return what is written in a container's requests and limits; None: neither names an extended resource.

    Raises:  ConfigError: a quantity is none, negative, or more than any node has.
    """
    asked, limited = requests or {}, limits or {}
    if not any(name in written for written in (asked, limited) for name in (BATCH_CPU, BATCH_MEMORY)):
        return None
    return BatchAmounts(
        _amount(asked, BATCH_CPU, MAX_MILLICPU, f"{path}.requests"),
        _amount(limited, BATCH_CPU, MAX_MILLICPU, f"{path}.limits"),
        _amount(asked, BATCH_MEMORY, MAX_BYTES, f"{path}.requests"),
        _amount(limited, BATCH_MEMORY, MAX_BYTES, f"{path}.limits"),
    )


def annotated_amounts(annotations: Mapping[str, str] | None) -> dict[str, BatchAmounts]:
    """Return what the annotation says of each container that has extended resources, by its name.

    Raises:  ConfigError: it is not of its form, or a quantity is none, negative, or more than any node has.
    """
    text = (annotations or {}).get(EXTENDED_RESOURCE_ANNOTATION)
    if not text:
        return {}
    path = f"annotation {EXTENDED_RESOURCE_ANNOTATION}"
    try:
        spec = decoder(_Spec).decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ConfigError(path, text[:80], str(error)) from None
    found = {
        name: batch_amounts(written.requests, written.limits, f"{path} containers[{name[:63]}]")
        for name, written in (spec.containers or {}).items()
    }
    return {name: amounts for name, amounts in found.items() if amounts is not None}


def _amount(written: Quantities, name: str, most: int, path: str) -> int:
    if name not in written:
        return 0
    amount = quantity_bytes(written[name], f"{path}.{name}")
    if amount > most:
        raise ConfigError(f"{path}.{name}", str(written[name])[:80], f"must be at most {most}")
    return amount
