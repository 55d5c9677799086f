"""Whether an interface has a link, by files of /sys/class/net."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from koordebpf.kernel.host.machine import has_link


def interface(net: Path, name: str, operstate: str | None, carrier: str | None, iflink: str = "2") -> None:
    files = {"ifindex": "2", "iflink": iflink, "operstate": operstate, "carrier": carrier}
    (net / name).mkdir()
    for file, text in files.items():
        if text is not None:
            (net / name / file).write_text(f"{text}\n")


@pytest.mark.parametrize(
    ("operstate", "carrier", "expected"),
    [
        ("up", "1", True),
        ("unknown", "1", True),
        ("up", "0", False),
        ("dormant", "0", False),
        ("down", None, False),  # switched off: its carrier cannot be read
        ("lowerlayerdown", "1", False),
        ("notpresent", None, False),
        ("up", None, True),
        (None, "0", None),
    ],
)
def test_the_state_and_the_carrier_both_have_to_be_good(
    tmp_path: Path, operstate: str | None, carrier: str | None, expected: bool | None
) -> None:
    interface(tmp_path, "eth0", operstate, carrier)
    assert has_link("eth0", tmp_path) is expected


def test_one_that_stands_for_another_says_nothing_of_the_node(tmp_path: Path) -> None:
    interface(tmp_path, "eth0", "down", "0", iflink="17")
    assert has_link("eth0", tmp_path) is None


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../net/eth0", "a/b", "a b", "a\x00b", "x" * 16, "\ud800", "é" * 300, "eth9"]
)
def test_a_name_that_is_none_leads_nowhere(tmp_path: Path, name: str) -> None:
    (tmp_path / "net").mkdir()
    interface(tmp_path / "net", "eth0", "up", "1")
    interface(tmp_path, "ifindex", "up", "1")
    assert has_link(name, tmp_path / "net") is None


def test_this_machines_loopback_is_up() -> None:
    assert has_link("lo") is True


_LOOPBACK = """
import subprocess
from koordebpf.kernel.host.machine import has_link

subprocess.run(["mount", "-t", "sysfs", "sysfs", "/sys"], check=True)
for state in ("down", "up", "down"):
    subprocess.run(["ip", "link", "set", "lo", state], check=True)
    print(has_link("lo"))
"""
_VETH = """
import subprocess
from koordebpf.kernel.host.machine import has_link

subprocess.run(["mount", "-t", "sysfs", "sysfs", "/sys"], check=True)
subprocess.run(["ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"], check=True)
print(has_link("v0"))
"""


def in_a_namespace(program: str) -> list[str]:
    command = ["unshare", "-nm", sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it makes a network namespace")
class TestRealInterfaces:
    def test_one_that_is_switched_off_has_none(self) -> None:
        assert in_a_namespace(_LOOPBACK) == ["False", "True", "False"]

    def test_a_veth_is_not_the_nodes(self) -> None:
        command = ["unshare", "-n", "ip", "link", "add", "v0", "type", "veth", "peer", "name", "v1"]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f"this kernel makes no veth: {made.stderr.strip()}")
        assert in_a_namespace(_VETH) == ["None"]
