"""What a tenant asks for by resizing its pod evicts, protects and limits nothing before it is granted."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from koordebpf.controller.batch.facts import pod_record
from koordebpf.jobs.prediction.predict import predicted_pod
from koordebpf.kube.cache.objects import Pod
from koordebpf.state.pods.facts import pod_facts
from koordebpf.state.pods.hook_pods import hook_pod
from koordebpf.strategies.memory_qos.values import memory_pod

_AMOUNTS = st.integers(1, 64)
_NOTHING_SAID: list[dict[str, str]] = []
_PENDING = [[{"type": "PodResizePending", "status": "True", "reason": reason}] for reason in ("Deferred", "Infeasible")]


def _resources(memory_gib: int, cpu: int) -> dict[str, dict[str, str]]:
    return {name: {"memory": f"{memory_gib}Gi", "cpu": str(cpu)} for name in ("requests", "limits")}


# `is_whole`: what is asked for is asked for by the pod's own level, and its container has no resources.
def _pod(asked: Any, allocated: Any, actual: Any, conditions: list[dict[str, str]], *, is_whole: bool) -> Pod:
    reported = {"resources": actual} | ({"allocatedResources": allocated["requests"]} if allocated else {})
    spec, nothing = {"resources": asked}, dict[str, Any]()
    container = {"name": "c"} | (nothing if is_whole else spec)
    status = {"name": "c", "containerID": "containerd://a"} | (nothing if is_whole else reported)
    return msgspec.convert(
        {
            "metadata": {"name": "web", "namespace": "shop", "uid": "u"},
            "spec": {"containers": [container]} | (spec if is_whole else nothing),
            "status": {
                "phase": "Running",
                "qosClass": "Guaranteed",
                "conditions": conditions,
                "containerStatuses": [status],
            }
            | (reported if is_whole else nothing),
        },
        Pod,
    )


@given(
    asked=st.builds(_resources, _AMOUNTS, _AMOUNTS),
    had=st.builds(_resources, _AMOUNTS, _AMOUNTS),
    conditions=st.sampled_from([_NOTHING_SAID, *_PENDING]),
    has_allocated=st.booleans(),
    is_whole=st.booleans(),
)
def test_what_is_asked_for_changes_nothing_before_it_is_granted(
    asked: Any, had: Any, conditions: list[dict[str, str]], *, has_allocated: bool, is_whole: bool
) -> None:
    allocated = had if has_allocated else None
    before = _pod(had, allocated, had, [], is_whole=is_whole)
    after = _pod(asked, allocated, had, conditions, is_whole=is_whole)
    assert pod_facts(after).terms == pod_facts(before).terms
    assert memory_pod(pod_facts(after)) == memory_pod(pod_facts(before))
    assert hook_pod(after, "Guaranteed") == hook_pod(before, "Guaranteed")
    assert pod_record(after) == pod_record(before)
    assert predicted_pod(pod_facts(after)) == predicted_pod(pod_facts(before))


@given(
    had=st.builds(_resources, _AMOUNTS, _AMOUNTS),
    asked=st.builds(_resources, _AMOUNTS, _AMOUNTS),
    is_whole=st.booleans(),
)
def test_what_is_granted_counts_at_once_and_what_shrinks_until_it_is_done(
    had: Any, asked: Any, *, is_whole: bool
) -> None:
    done = pod_facts(_pod(asked, asked, asked, [], is_whole=is_whole)).terms
    had_terms = pod_facts(_pod(had, had, had, [], is_whole=is_whole)).terms
    in_progress = [{"type": "PodResizeInProgress", "status": "True"}]
    moving = pod_facts(_pod(asked, asked, had, in_progress, is_whole=is_whole)).terms
    for name in ("memory_request_bytes", "cpu_request_millicpu"):
        assert getattr(moving, name) == max(getattr(done, name), getattr(had_terms, name))
