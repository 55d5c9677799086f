"""The rights that kustomize and Helm render: those of the files, which SECURITY.md lists, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.rendered import DEPLOY, Object, built, offered, overlay_with, templated
from tests.deploy.test_chart import SAME
from tests.support.rights import rights_in, shipped

COMPONENTS = sorted(path.name for path in (DEPLOY / "components").iterdir())
# A taint with NoExecute evicts, and Katalyst evicts by taints of a CustomNodeResource. `get` is there for these.
ENDING = {
    ("koordebpf-agent", right)
    for right in (
        "create pods/eviction",
        "delete pods",
        "get nodes",
        "patch nodes",
        "patch nodes/status",
        "get customnoderesources",
        "patch customnoderesources",
    )
}
EVERYTHING = SAME["everything"][2]


def given(objects: list[Object]) -> set[tuple[str, str]]:
    """Return account and right of all that is rendered."""
    return {(right.account, str(right)) for right in rights_in({"rendered": objects})}


@pytest.fixture(scope="module")
def listed() -> set[tuple[str, str]]:
    return {(right.account, str(right)) for right in rights_in(shipped())}


def test_with_all_components_they_are_those_of_the_files(listed: set[tuple[str, str]], tmp_path: Path) -> None:
    some = [name for name in COMPONENTS if name != "beside-koordinator"]
    assert given(built(overlay_with(tmp_path, "enforce", some))) == listed


def test_who_watches_has_no_right_by_which_pods_end(listed: set[tuple[str, str]], tmp_path: Path) -> None:
    some = [name for name in offered("observe") if name != "beside-koordinator"]
    assert given(built(overlay_with(tmp_path, "observe", some))) == listed - ENDING
    watching = {**EVERYTHING, "besideKoordinator": False, "enforce": {"enabled": False}}
    assert given(templated(watching)) == listed - ENDING


def test_the_overlay_that_watches_does_not_offer_what_only_acting_agents_use() -> None:
    assert sorted(offered("enforce")) == COMPONENTS
    assert set(offered("enforce")) - set(offered("observe")) == {"node-mark", "pod-deletion"}


def test_the_chart_gives_no_others(listed: set[tuple[str, str]]) -> None:
    assert given(templated({**EVERYTHING, "besideKoordinator": False})) == listed
