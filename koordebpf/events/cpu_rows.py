"""The layouts of bpf/include/koord_cpu.h: what one walk of the cgroups writes of each one's CPU time."""

from __future__ import annotations

from collections.abc import Mapping

from koordebpf.events.struct_layout import Layouts, compare_layout

CPU_LEVELS = 32  # KOORD_CPU_LEVELS

# Member → struct code, in the order of the C structure.
LAYOUTS: Layouts = {
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
    compare_layout(name, actual, LAYOUTS[name])
