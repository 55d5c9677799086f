"""Pods as bytes of core/v1, by the library protobuf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordebpf.kube.plugins.given_pods import GIVEN_POD_MESSAGES
from tests.contract.protobuf_classes import message_classes

POD = message_classes("core.v1.given", GIVEN_POD_MESSAGES)["Pod"]
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
    message = POD(
        metadata={
            "name": uid,
            "namespace": namespace,
            "uid": uid,
            "annotations": [{"key": key, "value": value} for key, value in given.items()],
            **metadata,
        },
        spec={
            "containers": [{"name": "main", "resources": {"requests": requests}}],
            "priority": [] if priority is None else [priority],
        },
        status={"phase": phase},
    )
    return bytes(message.SerializeToString()) + UNKNOWN_FIELD
