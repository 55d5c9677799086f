"""The layouts of bpf/include/koord_cpu.h: what one walk of the cgroups writes of each one's CPU time."""

from __future__ import annotations

import struct
from collections.abc import Mapping

from koordebpf.errors import SupportError

CPU_LEVELS = 32  # KOORD_CPU_LEVELS

# Member → struct code, in the order of the C structure.
LAYOUTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "koord_cpu_key": (("cgroup_id", "Q"), ("hierarchy", "Q")),
    "koord_cpu": (
        ("usage_pass", "Q"),
        ("usage_ns", "Q"),
        ("throttle_pass", "Q"),
        ("nr_periods", "Q"),
        ("nr_throttled", "Q"),
        ("throttled_ns", "Q"),
    ),
    "koord_cpu_settings": (
        ("cpus", "I"),
        ("reserved", "I"),
        ("pass", "Q"),
        ("hierarchy", "Q"),
        ("is_v2", "Q"),
        ("path", f"{CPU_LEVELS}I"),
    ),
}
CPU_WORDS = len(LAYOUTS["koord_cpu"])  # every member is a u64


def check_cpu_layout(name: str, actual: tuple[int, Mapping[str, int]]) -> None:
    """Hold one structure of the object's BTF against this module.

    Raises:  SupportError: a member is missing, moved, or the size differs.
    """
    offsets: dict[str, int] = {}
    size = 0
    for member, code in LAYOUTS[name]:
        offsets[member] = size
        size += struct.calcsize("<" + code)
    if actual != (size, offsets):
        raise SupportError(
            f"BPF record {name}",
            f"the object lays it out as {actual}, this package as {(size, offsets)}",
            "Build the objects from this package's sources: make bpf.",
        )
