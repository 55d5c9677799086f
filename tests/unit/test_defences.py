"""SECURITY.md: where a defence is taken out, a test of its row that needs nothing fails."""

from __future__ import annotations

import pytest

from tests.defences import Defences


@pytest.mark.slow
class TestDefences(Defences):
    folder = "unit"
