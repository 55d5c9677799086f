"""Addresses to listen at."""

from __future__ import annotations

import pytest

from koordebpf.errors import ConfigError
from koordebpf.report.http.listener import parse_listen


@pytest.mark.parametrize(
    ("listen", "expected"),
    [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:65535", ("::1", 65535)), (":9320", ("", 9320))],
)
def test_host_and_port(listen: str, expected: tuple[str, int]) -> None:
    assert parse_listen(listen, "--listen") == expected


@pytest.mark.parametrize("listen", ["", "9320", "a:", "a:65536", "a:-1", "a:b", "a:９"])
def test_what_is_no_port_is_named(listen: str) -> None:
    with pytest.raises(ConfigError, match="--listen"):
        parse_listen(listen, "--listen")
