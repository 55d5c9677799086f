"""Which programs are compiled for which tests."""

from __future__ import annotations

from tests import programs
from tests.programs import CLUSTER, CLUSTER_QUICK, of_folder


def test_a_module_gets_what_it_reaches_by_imports_and_no_more() -> None:
    assert of_folder("cluster", ["tests/cluster/test_actions.py"]) == CLUSTER_QUICK
    peers = of_folder("cluster", ["tests/cluster/test_actions.py", "tests/cluster/test_katalyst_plugins.py"])
    assert peers == ("cluster.binaries", "cluster.katalyst_programs")
    assert "cluster.koordinator_programs" in of_folder("cluster", ["tests/cluster/test_instead_of_koordlet.py"])


def test_a_whole_folder_gets_all_of_it_but_a_quick_one_no_image() -> None:
    assert of_folder("cluster") == CLUSTER
    assert of_folder("cluster", quick=True) == CLUSTER_QUICK
    assert of_folder("deploy") == programs.DEPLOY
    assert of_folder("unit") == of_folder("unit", ["tests/unit/test_ledger.py"]) == ()
