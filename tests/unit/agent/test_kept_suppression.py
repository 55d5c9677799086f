"""What a successor makes of the file that suppression left."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordebpf.agent.strategies.suppression import _read
from koordebpf.kernel.io.kept_file import KeptFile


@pytest.mark.parametrize(
    "text", [b"", b"\xff", b"[]", b'{"later": ' * 20_000], ids=["empty", "no text", "array", "deep"]
)
def test_what_cannot_be_read_is_removed(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "suppression.json"
    path.write_bytes(text)
    assert _read(KeptFile(path, "a successor begins from nothing")) is None
    assert not path.exists()
