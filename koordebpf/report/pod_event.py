"""An Event on a pod, before it is posted."""

from __future__ import annotations

import msgspec

from koordebpf.kube.clients.events import EventType


class PodEvent(msgspec.Struct, frozen=True):
    """What was done to a pod. `kind` is the Event's type; `action` is Katalyst's word for it, None: it has none."""

    namespace: str
    name: str
    uid: str
    reason: str
    message: str
    kind: EventType = "Warning"
    action: str | None = None
