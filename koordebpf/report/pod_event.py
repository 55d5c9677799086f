"""An Event on a pod, or on the node, before it is posted."""

from __future__ import annotations

import msgspec

from koordebpf.kube.clients.events import About, EventType


class PodEvent(msgspec.Struct, frozen=True):
    """What was done to a pod, or is to be. `kind` is the Event's type; `action` is Katalyst's word, None: it has none.

    `about` Node: `name` and `uid` are both the Node's name, as in kubelet's own Events, and it has no namespace.
    """

    namespace: str
    name: str
    uid: str
    reason: str
    message: str
    kind: EventType = "Warning"
    action: str | None = None
    about: About = "Pod"
