"""Kubernetes' minors: list, pins, Makefile and pages agree, and what goes wrong with one is not missed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import minors
from tests.cluster.pin import go_mod
from tests.cluster.releases import BUILD, DEFAULT, RELEASES, VARIABLE, Release, UnknownMinor, chosen
from tests.counted import Counted
from tests.node.image import SUITES, _drop_older

ROOT = Path(__file__).parents[2]
VERSIONS = [release.version for release in RELEASES.values()]
EACH = pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)
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


def test_three_are_in_a_row_and_the_oldest_is_the_default() -> None:
    numbers = [int(minor.removeprefix("1.")) for minor in RELEASES]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert len(RELEASES) == 3
    assert min(numbers) == int(DEFAULT.removeprefix("1."))
    assert {path.name for path in BUILD.iterdir() if path.is_dir()} == {*RELEASES, "stub"}


@EACH
def test_each_is_pinned_to_its_version(release: Release) -> None:
    pinned = release.go_mod.read_text()
    beside = f"v0.{release.version.removeprefix('1.')}"
    assert lines(pinned, "require")["k8s.io/kubernetes"] == f"v{release.version}"
    places = lines(pinned, "replace")
    assert len(places) > 25
    assert {place for name, place in places.items() if place != f"{name} {beside}"} == {
        "./stub/sample-cli-plugin", "./stub/sample-controller",
    }  # fmt: skip
    sums = release.go_mod.with_suffix(".sum").read_text()
    assert f"k8s.io/kubernetes v{release.version} h1:" in sums
    assert f"k8s.io/kubelet {beside} h1:" in sums


def test_helm_has_the_modules_of_the_default() -> None:
    texts = [path.read_text() for path in (ROOT / "tests/deploy/build/go.mod", RELEASES[DEFAULT].go_mod)]
    of_helm, of_cluster = (
        lines(text, "require") | {name: place.split()[-1] for name, place in lines(text, "replace").items()}
        for text in texts
    )
    shared = {name for name in of_helm.keys() & of_cluster.keys() if name.startswith(("k8s.io/", "golang.org/x/"))}
    assert len(shared) > 12
    assert {name: of_helm[name] for name in shared} == {name: of_cluster[name] for name in shared}


def listed(names: list[str]) -> str:
    return f"Kubernetes {', '.join(names[:-1])} and {names[-1]}"


def test_the_pages_name_them() -> None:
    assert listed(VERSIONS) in (ROOT / "tests/README.md").read_text()
    tested = f"Tested with API server and\nkubelet of {listed(list(RELEASES))};"
    assert tested in (ROOT / "deploy/README.md").read_text()


def test_the_page_and_the_makefile_name_no_other() -> None:
    page = (ROOT / "tests/README.md").read_text()
    section = page.partition("## Kubernetes' minors\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"\b1\.\d\d\.\d+\b", section)) - {"1.38.1"} == set(VERSIONS)
    assert f"use the oldest, {DEFAULT}." in section
    named = [
        word
        for text in (section, (ROOT / "Makefile").read_text())
        for value in re.findall(rf'(?:MINORS|{VARIABLE})="?([\d. ]+)', text)
        for word in value.split()
    ]
    assert len(named) > 4
    assert set(named) <= set(RELEASES)
    assert f"`cluster/build/{DEFAULT}`" in page


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


@pytest.mark.parametrize("folder", minors.TESTS)
def test_the_chosen_tests_exist(folder: str) -> None:
    words = set(re.findall(r"\w+", minors.TESTS[folder])) - {"and", "or", "not", "slow"}
    files = {word for word in words if word.startswith("test_")}
    assert files
    sources = {word: (ROOT / "tests" / folder / f"{word}.py").read_text() for word in files}
    assert [word for word in words - files if not any(word in source for source in sources.values())] == []


def test_a_nodes_image_leaves_those_of_other_minors(tmp_path: Path) -> None:
    suite, (one, two, three) = SUITES["trixie"], RELEASES
    kept = {f"trixie-{two}-a", f"trixie-{three}-b", f"bookworm-{one}-c"}
    for name in (*kept, f"trixie-{one}-d", "trixie-1.2-e", "trixie-0123456789abcdef"):
        (tmp_path / name).mkdir()
    _drop_older(tmp_path, suite, one)
    assert {path.name for path in tmp_path.iterdir()} == kept
