"""A node whose containerd has NRI: pods are limited when their first instruction runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.node.image import Suite
from tests.node.node import GuestNode
from tests.node.nri import expect_all_start_limited


def test_ten_batch_pods_at_once_all_start_limited(node: GuestNode, suite: Suite, figure: Callable[[str], None]) -> None:
    if not suite.has_nri:
        pytest.skip(f"not this kind of machine: containerd of {suite.name} has no NRI")
    figure(expect_all_start_limited(node))
