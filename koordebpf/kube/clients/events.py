"""What an Event looks like that the API server takes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final, Literal

import msgspec

EventType = Literal["Normal", "Warning"]
About = Literal["Pod", "Node"]

COMPONENT: Final = "koordebpf"
CLUSTER_NAMESPACE: Final = "default"  # of Events on objects that have none; the API server takes no other
MESSAGE_BYTES: Final = 1024  # what events.k8s.io/v1 allows; core/v1 sets no limit of its own


class Regarding(msgspec.Struct, frozen=True):
    """The object that an Event is about."""

    kind: str
    namespace: str
    name: str
    uid: str


def core_event(
    regarding: Regarding,
    *,
    reason: str,
    message: str,
    at: datetime,
    host: str,
    count: int = 1,
    name: str | None = None,
    kind: EventType = "Warning",
    action: str | None = None,
) -> dict[str, Any]:
    """Return a core/v1 Event in the namespace of its object, or in default. A message that is too long is cut.

    `action` is what was done, in one word; None: the Event has none.
    """
    stamp = at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    # As client-go names them: one for an object and a moment, so that a request sent twice is not recorded twice.
    by_moment = f"{regarding.name}.{int(at.timestamp() * 1_000_000_000):x}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name or by_moment, "namespace": regarding.namespace or CLUSTER_NAMESPACE},
        "involvedObject": {"apiVersion": "v1", **msgspec.structs.asdict(regarding)},
        "type": kind,
        "reason": reason,
        **({"action": action} if action else {}),
        "message": message.encode()[:MESSAGE_BYTES].decode(errors="ignore"),
        "source": {"component": COMPONENT, "host": host},
        "reportingComponent": COMPONENT,
        "reportingInstance": host,
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": count,
    }
