"""SECURITY.md: where a defence is taken out, a test of its row on a real API server fails."""

from __future__ import annotations

import pytest

from tests.defences import Defences


@pytest.mark.slow
class TestDefences(Defences):
    folder = "cluster"
