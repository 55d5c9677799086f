"""What a machine needs for a real node; without it tests of one are skipped."""

from __future__ import annotations

import os

import pytest

from tests.cluster.node import hierarchies


def require_real_node() -> None:
    """Skip the test where no node can be made."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes cgroups and namespaces")
    if not hierarchies():
        pytest.skip("not this kind of machine: the node is made of cgroup v1 hierarchies")
