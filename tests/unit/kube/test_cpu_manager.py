"""Kubelet's cpu_manager_state: as kubelet 1.34 writes it, absent, replaced, and garbage."""

from __future__ import annotations

import pytest

from koordebpf.errors import ConfigError
from koordebpf.kube.sources.cpu_manager import CpuManagerFile, CpuManagerState, parse_cpu_manager_state

NONE = b'{"policyName":"none","defaultCpuSet":"","checksum":1353318690}'
STATIC = (
    b'{"policyName":"static","defaultCpuSet":"0,4-7","entries":{'
    b'"0b7e5a10-0000-4000-8000-000000000001":{"main":"1","sidecar":"3"},'
    b'"0b7e5a10-0000-4000-8000-000000000002":{"main":"2"},'
    b'"0b7e5a10-0000-4000-8000-000000000003":{"main":""}},"checksum":2840182}'
)


def test_policies():
    assert parse_cpu_manager_state(NONE, "state") == CpuManagerState("none", {})
    assert parse_cpu_manager_state(STATIC, "state") == CpuManagerState(
        "static",
        {"0b7e5a10-0000-4000-8000-000000000001": (1, 3), "0b7e5a10-0000-4000-8000-000000000002": (2,)},
        (0, 4, 5, 6, 7),
    )


@pytest.mark.parametrize(
    "raw",
    [b"", b"{}", b"[]", b"\xff", b'{"policyName":1}', STATIC.replace(b'"1"', b'"1-x"'), STATIC.replace(b"4-7", b"7-4")],
)
def test_garbage_is_named(raw):
    with pytest.raises(ConfigError, match=r"^state: .* must be a state of kubelet's CPU manager"):
        parse_cpu_manager_state(raw, "state")


def test_the_file_is_followed(tmp_path):
    file = CpuManagerFile(tmp_path / "cpu_manager_state")
    assert file.read() is None
    for raw, policy in ((NONE, "none"), (STATIC, "static")):
        (tmp_path / "new").write_bytes(raw)
        (tmp_path / "new").replace(file.path)
        state = file.read()
        assert state is not None
        assert state.policy == policy
        assert file.read() is state
    file.path.write_bytes(b"half a fi")
    with pytest.raises(ConfigError):
        file.read()
    with pytest.raises(ConfigError):  # as long as it is so
        file.read()
    file.path.unlink()
    assert file.read() is None


@pytest.mark.parametrize("entries", [b"null", b'{"0b7e5a10-0000-4000-8000-000000000001":null}'])
def test_entries_that_are_null_are_none(entries):
    raw = b'{"policyName":"static","defaultCpuSet":"0-3","entries":%s,"checksum":1}' % entries
    assert parse_cpu_manager_state(raw, "state") == CpuManagerState("static", {}, (0, 1, 2, 3))
