"""Kubernetes' minors: list, pins, Makefile and pages agree."""

from __future__ import annotations

import re

from tests import minors
from tests.cluster.releases import BUILD, DEFAULT, RELEASES, VARIABLE, Release
from tests.rules.offenders import report
from tests.rules.pages import ROOT, name_of

VERSIONS = [release.version for release in RELEASES.values()]


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


def test_each_is_pinned_to_its_version() -> None:
    for release in RELEASES.values():
        is_pinned(release)


def is_pinned(release: Release) -> None:
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


def test_the_chosen_tests_exist() -> None:
    missing = []
    for folder, expression in minors.TESTS.items():
        words = set(re.findall(r"\w+", expression)) - {"and", "or", "not", "slow"}
        files = {word for word in words if word.startswith("test_")}
        assert files, folder
        paths = [ROOT / "tests" / folder / f"{word}.py" for word in sorted(files)]
        missing += [f"tests/minors.py: {name_of(path)}" for path in paths if not path.is_file()]
        sources = "".join(path.read_text() for path in paths if path.is_file())
        missing += [f"tests/minors.py: {folder}: {word}" for word in sorted(words - files) if word not in sources]
    report(missing, "make test-minors chooses these files and words, which are not there")
