"""What runs on the node: the pods of the saved state, and loads of others."""

from __future__ import annotations

from tests.cluster.api import Object
from tests.cluster.objects import pod

# `wait` is what a signal interrupts; busybox's sleep would be waited for to its end.
_IDLE = "while :; do sleep 100000 & wait; done"
# What a pod runs: nothing; a hog that allocates when it gets SIGUSR1 (`GuestNode.wake_hog`); one that ignores SIGTERM,
# which the runtime sends to the first process alone.
SLEEP: tuple[str, ...] = ()
HOG = ("/bin/sh", "-c", f"trap 'read a </tmp/hog; exec /bin/hog $a' USR1; {_IDLE}")
STUBBORN_HOG = ("/bin/sh", "-c", f"trap '' TERM; trap 'read a </tmp/hog; /bin/hog $a &' USR1; {_IDLE}")


def warm_pods(node_name: str) -> list[Object]:
    """Return the pods of the saved state: one LS, one BE, and a BE hog."""
    web = pod(
        "web", node_name, qos="LS", priority="koord-prod", requests={"cpu": "200m", "memory": "64Mi"},
        limits={"memory": "256Mi"},
    )  # fmt: skip
    web["spec"]["automountServiceAccountToken"] = True
    return [web, pod("batch", node_name), pod("hog", node_name, *HOG)]
