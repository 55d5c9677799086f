"""How often signs of life are published: a burst of events without news costs its readers nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from koordebpf.kube.cache import reflector as module
from koordebpf.kube.cache.reflector import Pace, Reflector, Resource
from koordebpf.kube.cache.store import decode_pod
from koordebpf.units import NS_PER_MS
from tests.contract.apiserver import listing, pod

LIFE_NS = 100 * NS_PER_MS


def test_of_a_burst_of_events_without_news_one_each_tenth_of_a_second_is_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = SimpleNamespace(monotonic_ns=lambda: clock.now_ns, monotonic=time.monotonic, now_ns=10**12)
    monkeypatch.setattr(module, "time", clock)
    published: list[tuple[bool, int]] = []

    def same_events() -> Iterator[bytes]:
        published.clear()
        for number in range(101, 131):
            clock.now_ns += LIFE_NS // 10
            yield msgspec.json.encode({"type": "MODIFIED", "object": pod("a", number)})
        reflector.stop()

    @contextmanager
    def lines(*_: Any, **__: Any) -> Iterator[Iterator[bytes]]:
        yield same_events()

    transport: Any = SimpleNamespace(get=lambda *_, **__: msgspec.json.encode(listing([pod("a", 1)], 100)), lines=lines)
    reflector = Reflector(
        transport,
        Resource("pods", "/api/v1/pods", ""),
        decode_pod,
        lambda is_news: published.append((is_news, clock.now_ns)),
        Pace(),
    )
    reflector.start()
    reflector.join(30)
    began_ns = 10**12
    assert [(is_news, at_ns - began_ns) for is_news, at_ns in published[:-1]] == [
        (False, 11 * LIFE_NS // 10),
        (False, 22 * LIFE_NS // 10),
    ]
    assert reflector.view.synced_at_ns == clock.now_ns  # its end is one, too
