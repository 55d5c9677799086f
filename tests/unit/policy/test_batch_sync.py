"""When a Node is written."""

from __future__ import annotations

import pytest

from koordebpf.policy.batch.zones import sync_reason
from koordebpf.state.pods.requests import BATCH_CPU, MID_CPU

NOW = {BATCH_CPU: 10_000, MID_CPU: None}


@pytest.mark.parametrize(
    ("wanted", "since_s", "says"),
    [
        ({BATCH_CPU: 10_000, MID_CPU: None}, None, ""),
        ({BATCH_CPU: 10_000, MID_CPU: None}, 10_000, ""),
        ({BATCH_CPU: 11_001}, 1, "by more than 0.1"),
        ({BATCH_CPU: 8_999}, 1, "by more than 0.1"),
        ({BATCH_CPU: 11_000}, 1, ""),
        ({BATCH_CPU: 9_000}, 300, ""),
        ({BATCH_CPU: 9_000}, 301, "the last write is old"),
        ({BATCH_CPU: 9_000}, None, "the last write is old"),
        ({BATCH_CPU: None}, 1, "is reset"),
        ({BATCH_CPU: 10_000, MID_CPU: 0}, 1, "appears"),
    ],
)
def test_a_node_is_written_for(wanted: dict, since_s: int | None, says: str) -> None:
    since_ns = None if since_s is None else since_s * 10**9
    reason = sync_reason(NOW, wanted, 0.1, since_ns, 300 * 10**9)
    assert says in reason
    assert bool(says) == bool(reason)


def test_what_grows_from_nothing_is_written_at_once() -> None:
    assert "0 → 1" in sync_reason({BATCH_CPU: 0}, {BATCH_CPU: 1}, 0.1, 1, 300 * 10**9)
