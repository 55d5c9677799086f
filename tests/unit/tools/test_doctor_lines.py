"""What `koordebpf doctor` says of the backends that it tried, and of where the kubelet's cgroups begin."""

from __future__ import annotations

import pytest

from koordebpf.attribution.kubelet_root import KubeletRoot
from koordebpf.kernel.backends.select import WantedBackend
from koordebpf.kernel.signals import BackendName, SignalSource
from koordebpf.tools.doctor.checks import backend_tries, kubelet_root_source
from koordebpf.tools.doctor.page import BackendTry

NO_BTF = SignalSource("backend co-re", "", False, "no BTF", "Build it")
NO_CGROUPS = SignalSource("cgroups", "", False, "not mounted", "Mount them")
WORKS = SignalSource("stalls", "timed", True)


@pytest.mark.parametrize(
    ("sources", "wanted", "taken", "tries"),
    [
        (
            [WORKS], "auto", "co-re",
            [BackendTry("co-re", True), BackendTry("bcc", False, "not needed: co-re works"),
             BackendTry("files", False, "not needed: co-re works")],
        ),
        (
            [NO_BTF, WORKS], "auto", "bcc",
            [BackendTry("co-re", False, "no BTF", "Build it", failed=True), BackendTry("bcc", True),
             BackendTry("files", False, "not needed: bcc works")],
        ),
        (
            [WORKS], "files", "files",
            [BackendTry("co-re", False, "not tried: files is wanted"),
             BackendTry("bcc", False, "not tried: files is wanted"), BackendTry("files", True)],
        ),
        (
            [WORKS, NO_CGROUPS], "auto", None,
            [BackendTry(name, False, "not mounted", "Mount them", failed=True) for name in ("co-re", "bcc", "files")],
        ),
        (
            [NO_CGROUPS], "bcc", None,
            [BackendTry("co-re", False, "not tried: bcc is wanted"),
             BackendTry("bcc", False, "not mounted", "Mount them", failed=True),
             BackendTry("files", False, "not tried: bcc is wanted")],
        ),
    ],
)  # fmt: skip
def test_each_backend_is_taken_or_says_why_not(
    sources: list[SignalSource], wanted: WantedBackend, taken: BackendName | None, tries: list[BackendTry]
) -> None:
    assert backend_tries(sources, wanted, taken) == tries


def line(given: str | None, *paths: str) -> tuple[str, bool, str]:
    root = KubeletRoot(given)
    for number, path in enumerate(paths):
        root.is_kubepods(number, path)
    found = kubelet_root_source(root)
    assert found.signal == "kubelet's cgroup root"
    assert bool(found.remedy) is (found.cost == "the agent evicts no pod") is not found.works
    return found.how, found.works, found.reason


@pytest.mark.parametrize(
    ("given", "paths", "how"),
    [
        (None, [], "learned once the kubelet has made it"),
        (None, ["kubepods"], "/: kubepods"),
        (None, ["a/kubepods"], "/a: a/kubepods"),
        (None, ["kubepods", "kubepods.slice"], "/: kubepods, kubepods.slice"),  # of one root: both drivers
        (None, ["a/kubepods", "b/kubepods"], "one of /a, /b: learned from the pods, or --cgroup-root"),
        (
            None,
            [f"{name}/kubepods" for name in "abcde"],
            "one of /a, /b, /c, /d: learned from the pods, or --cgroup-root",
        ),
        ("/a", ["kubepods", "a/kubepods"], "/a, as given: a/kubepods"),
    ],
)
def test_the_kubelets_root_is_what_is_given_or_what_is_there(given: str | None, paths: list[str], how: str) -> None:
    assert line(given, *paths) == (how, True, "")


def test_a_given_root_that_is_not_there_is_missing() -> None:
    how, works, reason = line("/a", "kubepods")
    assert (how, works) == ("", False) and "a/kubepods" in reason
