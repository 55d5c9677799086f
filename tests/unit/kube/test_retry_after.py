"""When a server that is busy is asked again."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

import pytest

from koordebpf.errors import KubeBusy
from koordebpf.kube.http.transport import refusal


def retry_after_s(headers: dict[str, str], **details: Any) -> float | None:
    body = json.dumps({"message": "later", "details": details}).encode()
    error = refusal(HTTPStatus.TOO_MANY_REQUESTS, headers, body, "create", "pods/eviction")
    assert isinstance(error, KubeBusy)
    return error.retry_after_s


@pytest.mark.usefixtures("no_jitter")
def test_the_header_precedes_the_body() -> None:
    assert retry_after_s({"Retry-After": "10"}, retryAfterSeconds=20) == 10
    assert retry_after_s({}, retryAfterSeconds=20) == 20
    assert retry_after_s({}) is None
    assert retry_after_s({"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}) is None


@pytest.mark.usefixtures("no_jitter")
@pytest.mark.parametrize("text", ["86400", "9" * 400], ids=["a day", "more than a float holds"])
def test_no_server_holds_a_pod_back_for_hours(text: str) -> None:
    assert retry_after_s({"Retry-After": text}) == 300


@pytest.mark.usefixtures("no_jitter")
@pytest.mark.parametrize(("said", "taken"), [(2**62, 300), (-5, 0)])
def test_nor_does_its_body(said: int, taken: float) -> None:
    assert retry_after_s({}, retryAfterSeconds=said) == taken


@pytest.mark.parametrize("asked", [({"Retry-After": "10"}, {}), ({}, {"retryAfterSeconds": 10})])
def test_of_many_agents_no_two_return_at_once_and_none_too_early(
    asked: tuple[dict[str, str], dict[str, int]],
) -> None:
    waits = [retry_after_s(asked[0], **asked[1]) or 0 for _ in range(100)]
    assert len(set(waits)) > 90
    assert 10 <= min(waits) < 10.5 and 12 < max(waits) <= 12.5
