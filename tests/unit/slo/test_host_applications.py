"""Host applications of a NodeSLO, and the cgroups that belong to them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from koordebpf.attribution.index import CgroupIndex
from koordebpf.attribution.owner import OwnerKind
from koordebpf.slo.spec import parse_spec
from koordebpf.slo.strategies.host_applications import host_directories


def nodeslo(*applications: Any) -> bytes:
    return json.dumps({"spec": {"hostApplications": list(applications)}}).encode()


@pytest.mark.parametrize(
    ("application", "directories"),
    [
        ({"name": "a", "qos": "LS"}, ["host-latency-sensitive/a"]),
        ({"name": "a", "qos": "BE"}, ["host-best-effort/a"]),
        ({"name": "a"}, ["a"]),
        ({"name": "a", "cgroupPath": {"base": "CgroupRoot", "parentDir": "x/", "relativePath": "y"}}, ["x/y"]),
        (
            {"name": "a", "qos": "BE", "cgroupPath": {"base": "KubepodsBesteffort", "relativePath": "yarn"}},
            ["kubepods/besteffort/yarn", "kubepods.slice/kubepods-besteffort.slice/yarn"],
        ),
    ],
)
def test_directories(application: dict[str, Any], directories: list[str]) -> None:
    spec, problems = parse_spec(nodeslo(application))
    assert not problems
    assert host_directories(spec.hostApplications) == dict.fromkeys(directories, "a")


def test_none_are_none() -> None:
    for raw in (b"{}", b'{"spec":{"hostApplications":null}}'):
        assert host_directories(parse_spec(raw)[0].hostApplications) == {}


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        (b'{"spec":{"hostApplications":{}}}', "spec.hostApplications"),
        (nodeslo("x"), r"spec.hostApplications\[0\]"),
        (nodeslo({"qos": "LS"}), r"spec.hostApplications\[0\].name"),
        (nodeslo({"name": "a", "cgroupPath": {"base": "Elsewhere"}}), "cgroupPath.base: 'Elsewhere'"),
        (nodeslo({"name": "a", "cgroupPath": {"parentDir": 7}}), "cgroupPath.parentDir: 7: must be a string"),
        # all best-effort pods would be the application
        (
            nodeslo({"name": "a", "cgroupPath": {"base": "KubepodsBesteffort"}}),
            r"\[0\].cgroupPath: 'kubepods/besteffort'",
        ),
        (nodeslo({"name": "a", "cgroupPath": {"relativePath": "/kubepods.slice/"}}), r"cgroupPath: 'kubepods.slice'"),
        (nodeslo({"name": "kubepods"}), r"cgroupPath: 'kubepods': must not be a directory that pods lie in"),
    ],
)
def test_errors_name_the_path(raw: bytes, path: str) -> None:
    spec, (problem,) = parse_spec(raw)
    assert re.search(path, str(problem))
    assert spec.hostApplications == ()


def test_what_becomes_known_later_owns_its_cgroup() -> None:
    index = CgroupIndex()
    index.replace_all(
        [(1, 0, ""), (2, 1, "kubepods"), (3, 2, "kubepods/besteffort"), (4, 3, "kubepods/besteffort/yarn")]
    )
    assert index.owner(4).kind is not OwnerKind.HOST_APPLICATION
    index.set_host_applications({"kubepods/besteffort/yarn": "yarn"})
    assert index.owner(4).host_application == "yarn"
    index.set_host_applications({})
    assert index.owner(4).host_application is None
