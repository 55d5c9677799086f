"""A subtree of directories deeper than a path can be long: all of it is walked, and what is not looked into counts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.subtree import directories, may_hold
from tests.support.nested import nest, remove_nest

LEVELS = 1_400  # as many times "../" is longer than a path may be


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("chains")
    tops = [folder / name for name in ("one", "other")]
    try:
        for top in tops:
            top.mkdir()
            os.close(nest(top, LEVELS))
        yield folder
    finally:
        for top in tops:
            remove_nest(top)


def test_behind_a_chain_the_walk_continues_at_its_top(chains: Path) -> None:
    top_fd = os.open(chains, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert sum(1 for _ in directories(top_fd)) == 1 + 2 * (1 + LEVELS)
    finally:
        os.close(top_fd)


def test_a_process_may_be_in_what_is_not_looked_into(chains: Path) -> None:
    assert may_hold(chains, os.getpid())
