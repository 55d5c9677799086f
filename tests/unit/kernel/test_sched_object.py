"""The scheduler's object where it cannot be opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordebpf.events.layout import check_layout
from koordebpf.kernel.bpf import sched_latency


@pytest.mark.parametrize("content", [b"", b"\x7fELF" + bytes(60)], ids=["an empty file", "no object"])
def test_a_broken_object_is_a_signal_that_is_not_there(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sched.bpf.o").write_bytes(content)
    monkeypatch.setattr(sched_latency, "object_path", lambda name: tmp_path / f"{name}.bpf.o")
    source = sched_latency.support_of_tracing(check_layout)
    assert not source.works
    assert source.reason and source.remedy
