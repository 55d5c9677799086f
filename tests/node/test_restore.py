"""A node that is restored: clock, lease, pods, tokens."""

from __future__ import annotations

import datetime

from tests.node.guest import Guest
from tests.node.node import GuestNode, is_running
from tests.node.pods import warm_pods
from tests.node.state import Saved

_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount/token"
_ROTATED_S = 180  # the kubelet looks at a pod's volumes once in 60 to 90 s


def test_the_clock_is_this_machines(shared_node: GuestNode) -> None:
    assert abs(shared_node.guest.clock_offset_s()) < 1


def test_the_lease_is_renewed_again_and_again(shared_node: GuestNode) -> None:
    first = shared_node.lease_renewed()
    shared_node.until(lambda: shared_node.lease_renewed() > first, "the lease is renewed")
    assert abs(datetime.datetime.now(datetime.UTC) - shared_node.lease_renewed()) < datetime.timedelta(seconds=15)


def test_the_node_is_ready_by_a_heartbeat_of_now(shared_node: GuestNode) -> None:
    def age_s() -> float:
        beat = datetime.datetime.fromisoformat(shared_node.condition("Ready")["lastHeartbeatTime"])
        return (datetime.datetime.now(datetime.UTC) - beat).total_seconds()

    shared_node.until(lambda: age_s() < 10, "a heartbeat of the last seconds")
    assert shared_node.condition("Ready")["status"] == "True"


def test_the_pods_run_as_they_did(shared_node: GuestNode) -> None:
    for wanted in warm_pods(shared_node.name):
        pod = shared_node.pod(wanted["metadata"]["name"])
        assert is_running(pod)
        assert pod is not None
        assert [each["restartCount"] for each in pod["status"]["containerStatuses"]] == [0]
        shared_node.guest.check(f"kill -0 {shared_node.first_pid(pod)}")


def test_a_pods_token_is_good_however_old_the_state_is(shared_node: GuestNode) -> None:
    pod = shared_node.pod("web")
    assert pod is not None
    pid = shared_node.first_pid(pod)

    def is_good() -> bool:
        token = shared_node.guest.check(f"cat /proc/{pid}/root{_TOKEN}").strip()
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        answer = shared_node.api.call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", review)
        return bool(answer["status"].get("authenticated"))

    shared_node.until(is_good, "the pod's token is accepted", _ROTATED_S)


def test_what_it_frees_stays_in_the_saved_memory(saved_node: Saved, shared_node: GuestNode) -> None:
    memory = Guest.saved_memory(saved_node.folder)
    before = memory.stat()
    # What the page cache held when it was saved is free then; the kernel reports free pages within two seconds.
    shared_node.guest.check("echo 3 >/proc/sys/vm/drop_caches && sleep 5")
    after = memory.stat()
    assert (after.st_mtime_ns, after.st_blocks) == (before.st_mtime_ns, before.st_blocks)
