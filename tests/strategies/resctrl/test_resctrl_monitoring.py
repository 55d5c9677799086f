"""What resctrl's monitoring says, as kernels write it, missing, and odd."""

from __future__ import annotations

from koordebpf.strategies.resctrl.run import read_monitoring
from koordebpf.strategies.resctrl.values import CLASSES, MonitoredDomain

GROUP, OTHER = list(CLASSES)[:2]


def domain(occupancy: str = "4096\n", total: str = "700\n", local: str = "300\n") -> dict[str, str]:
    return {"llc_occupancy": occupancy, "mbm_total_bytes": total, "mbm_local_bytes": local}


def test_each_cache_of_each_class_that_has_a_group(tree):
    root = tree({
        GROUP: {"mon_data": {"mon_L3_00": domain(), "mon_L3_08": domain("8192\n")}},
        OTHER: {"schemata": ""},
        "of-another": {"mon_data": {"mon_L3_00": domain()}},
    })  # fmt: skip
    assert read_monitoring(root) == (
        MonitoredDomain(GROUP, 0, 4096, 700, 300),
        MonitoredDomain(GROUP, 8, 8192, 700, 300),
    )


def test_what_has_no_counter_now_is_not_known(tree):
    root = tree({GROUP: {"mon_data": {"mon_L3_00": domain("Unavailable\n", "Error\n", "Unassigned\n")}}})
    assert read_monitoring(root) == (MonitoredDomain(GROUP, 0, None, None, None),)
    root = tree({OTHER: {"mon_data": {"mon_L3_01": {"llc_occupancy": "", "mbm_total_bytes": b"\xff"}}}})
    assert read_monitoring(root)[1] == MonitoredDomain(OTHER, 1, None, None, None)


def test_other_directories_and_more_domains_than_any_machine_has_are_left_out(tree):
    names = [f"mon_L3_{number:02}" for number in range(70)]
    root = tree({GROUP: {"mon_data": {"mon_L2_00": domain(), "mon_L3_x": domain(), **dict.fromkeys(names, domain())}}})
    found = read_monitoring(root)
    assert [each.domain for each in found] == list(range(64))
    assert read_monitoring(root / "none") == ()
