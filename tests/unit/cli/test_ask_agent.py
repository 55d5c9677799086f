"""Why an agent cannot be asked, in one sentence."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from koordebpf.cli.inputs import ask_agent
from koordebpf.errors import ConfigError


def test_a_port_where_none_listens_is_named_with_the_systems_words_and_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(ConfigError) as caught:
        ask_agent(url, Path("/nowhere"), "metrics", or_else="name a --snapshot")
    wanted = f"--url: {url!r}: must be a running agent: Connection refused; or name a --snapshot"
    assert str(caught.value) == wanted


def test_what_is_neither_socket_nor_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="must be a socket's path, or begin with http"):
        ask_agent("ftp://node", Path("/nowhere"), "metrics", or_else="")
