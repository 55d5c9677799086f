"""Pods as bytes of core/v1, by the library protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordebpf.kube.plugins.pods import POD_TABLE
from tests.contract.protobuf_classes import message_classes

CLASSES = message_classes("core.v1.given", POD_TABLE)
POD = CLASSES["Pod"]
QOS = "katalyst.kubewharf.io/qos_level"
UNKNOWN_FIELD = b"\x9a\x06\x03abc"  # field 99


def plugin_pod(
    uid: str,
    level: str | None = None,
    priority: int | None = None,
    namespace: str = "team",
    annotations: Mapping[str, str] | None = None,
    request: str | None = "64Mi",
    phase: str = "Running",
    **metadata: Any,
) -> bytes:
    """A running pod of one container, named as its UID, with a field that is not known here."""
    given = {**(annotations or {}), **({QOS: level} if level else {})}
    requests = [{"key": "memory", "value": {"string": request}}] if request else []
    spec = CLASSES["PodSpec"](containers=[{"name": "main", "resources": {"requests": requests}}]).SerializeToString()
    if priority is not None:
        spec += b"\xc8\x01" + _varint(priority)  # field 25, not packed, as proto2 has it
    metadata = {
        "name": uid,
        "namespace": namespace,
        "uid": uid,
        "annotations": [{"key": key, "value": value} for key, value in given.items()],
        **metadata,
    }
    rest: bytes = POD(metadata=metadata, status={"phase": phase}).SerializeToString()
    return rest + b"\x12" + _varint(len(spec)) + spec + UNKNOWN_FIELD


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
