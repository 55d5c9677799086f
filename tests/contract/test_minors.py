"""Kubernetes' minors: how one is pinned and chosen, and what goes wrong with one is not missed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import minors
from tests.cluster.pin import go_mod
from tests.cluster.releases import DEFAULT, RELEASES, VARIABLE, UnknownMinor, chosen
from tests.counted import Counted
from tests.node.image import SUITES, _drop_older

ROOT = Path(__file__).parents[2]
OWN = """\
module k8s.io/kubernetes

go 1.26.0

require (
	github.com/spf13/cobra v1.10.2
	go.etcd.io/etcd/server/v3 v3.7.0 // indirect
)

replace (
	k8s.io/api => ./staging/src/k8s.io/api
	k8s.io/sample-controller => ./staging/src/k8s.io/sample-controller
)
"""


def lines(text: str, block: str) -> dict[str, str]:
    """Return what all blocks of a go.mod have, by module."""
    found = "\n".join(re.findall(rf"^{block} \((.*?)^\)", text, re.MULTILINE | re.DOTALL))
    return dict(re.findall(r"^\t(\S+) (?:=> )?(.*?)(?: // indirect)?$", found, re.MULTILINE))


def test_a_pin_is_made_of_the_releases_own_go_mod() -> None:
    made = go_mod("1.37.2", OWN)
    assert lines(made, "require") == {
        "github.com/spf13/cobra": "v1.10.2",
        "go.etcd.io/etcd/server/v3": "v3.7.0",
        "k8s.io/component-base": "v0.37.2",
        "k8s.io/kubectl": "v0.37.2",
        "k8s.io/kubernetes": "v1.37.2",
    }
    assert lines(made, "replace") == {
        "k8s.io/api": "k8s.io/api v0.37.2",
        "k8s.io/sample-controller": "./stub/sample-controller",
    }
    assert "\ngo 1.26.0\n" in made
    assert "\ngodebug default=go1.26\n" in made


def test_the_environment_chooses() -> None:
    assert chosen({}) == chosen({VARIABLE: ""}) == RELEASES[DEFAULT]
    assert [chosen({VARIABLE: minor}) for minor in RELEASES] == list(RELEASES.values())
    with pytest.raises(UnknownMinor, match=r"KOORDEBPF_KUBERNETES=1\.2: .* there are: (1\.\d\d(, )?){3}$"):
        chosen({VARIABLE: "1.2"})


def test_a_minor_that_is_not_known_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.cluster.binaries"],
        cwd=ROOT, env=os.environ | {VARIABLE: "1.2", "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("cluster: KOORDEBPF_KUBERNETES=1.2: ")
    assert list(tmp_path.iterdir()) == []
    assert minors.main(["1.2"]) == 2


def test_only_a_minor_that_was_built_and_passed_is_well() -> None:
    release = RELEASES[DEFAULT]
    assert minors.Row(release, Counted(passed=9), 60, 30).is_well
    for counted, why in ((Counted(), ""), (Counted(9, 1), ""), (Counted(9), "go build ended with 1")):
        row = minors.Row(release, counted, 60, 30, why)
        assert not row.is_well
        assert row.text().startswith(release.version)
        assert why in row.text()


def test_what_cannot_be_built_is_reported_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1.2")
    assert "KOORDEBPF_KUBERNETES=1.2: there is no such minor" in minors.build()


def test_a_nodes_image_leaves_those_of_other_minors(tmp_path: Path) -> None:
    suite, (one, two, three) = SUITES["trixie"], RELEASES
    kept = {f"trixie-{two}-a", f"trixie-{three}-b", f"bookworm-{one}-c"}
    for name in (*kept, f"trixie-{one}-d", "trixie-1.2-e", "trixie-0123456789abcdef"):
        (tmp_path / name).mkdir()
    _drop_older(tmp_path, suite, one)
    assert {path.name for path in tmp_path.iterdir()} == kept
