"""SECURITY.md: where a defence is taken out, a test of its row on a real API server fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.defences import Removal, Row, assert_pass, noticed, params
from tests.mutate import copied

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copied(tmp_path_factory.mktemp("copy"))


@pytest.fixture(scope="module")
def failed() -> set[str]:
    return set()


@pytest.mark.parametrize(("removal", "row"), params("cluster"))
def test_a_test_notices_that_it_is_gone(removal: Removal, row: Row, copy: Path, failed: set[str]) -> None:
    failed.add(noticed(removal, row, copy))


def test_what_noticed_passes_with_all_of_them(copy: Path, failed: set[str]) -> None:
    assert_pass(sorted(failed), copy)
