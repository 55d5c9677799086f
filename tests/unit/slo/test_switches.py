"""Switches of NodeSLO's strategies as a sentence names them."""

from __future__ import annotations

from koordebpf.slo.manager.switches import named_switches


def test_three_are_named_and_of_more_their_number() -> None:
    paths = [(name, "enable") for name in ("a", "b", "c", "d", "e")]
    assert named_switches(paths[:3]) == "a.enable, b.enable, c.enable"
    assert named_switches(paths[:4]) == "a.enable, b.enable, c.enable and 1 more"
    assert named_switches(paths) == "a.enable, b.enable, c.enable and 2 more"
