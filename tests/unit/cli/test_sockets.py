"""Whether there may be an agent on this machine that this user may ask."""

from __future__ import annotations

from pathlib import Path

from koordebpf.cli.inputs import has_socket


def test_an_agent_has_a_socket_in_its_nodes_folder(tmp_path: Path) -> None:
    assert not has_socket(tmp_path / "none")
    (tmp_path / "machine").mkdir()
    (tmp_path / "machine" / "lock").touch()
    assert not has_socket(tmp_path)
    (tmp_path / "machine" / "explain.sock").touch()
    assert has_socket(tmp_path)
