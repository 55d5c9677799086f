"""Which Python a merge is tested with beside this one."""

from __future__ import annotations

from tests.pythons import RESOLUTIONS, chosen


def test_each_has_its_turn_and_what_changed_the_dependencies_has_both():
    assert [chosen(merges, ()) for merges in range(3)] == [[RESOLUTIONS[0]], [RESOLUTIONS[1]], [RESOLUTIONS[0]]]
    assert chosen(1, ["README.md", "pyproject.toml"]) == list(RESOLUTIONS)
