"""What memory.min and memory.low of a running node come to, level by level, on a tree of cgroup files."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordebpf.act.writer.places import Places
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.tools.pod_explain import protection_in_effect

FILES = (CgroupFile.MEMORY_MIN, CgroupFile.MEMORY_LOW)
POD = "kubepods/besteffort/pod12345678-9abc-def0-1234-56789abcdef0"
# A directory's setting, and what it uses.
TREE = {
    "kubepods": ("100", 500),
    "system.slice": ("7", 500),
    "kubepods/besteffort": ("60", 500),
    "kubepods/burstable": ("70", 60),
    "kubepods/unprotected": ("0", 500),
    POD: ("50", 500),
    "kubepods/besteffort/podall": ("max", 50),
    f"{POD}/container": ("10", 500),
    f"{POD}/all": ("max", 0),
}


@pytest.fixture(params=FILES)
def file(request: pytest.FixtureRequest) -> CgroupFile:
    found: CgroupFile = request.param
    return found


@pytest.fixture
def places(tmp_path: Path, file: CgroupFile) -> Places:
    for path, (setting, used) in TREE.items():
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
        (tmp_path / path / file.value).write_text(f"{setting}\n")
        (tmp_path / path / "memory.current").write_text(f"{used}\n")
    (tmp_path / "kubepods/a-file").write_text("")
    (tmp_path / "kubepods/gone").mkdir()
    return Places({"memory": ControllerMount(2, tmp_path)})


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("kubepods", 100),  # nothing above it is looked at
        ("kubepods/besteffort", 50),  # 60 of the 60 and 60 that are claimed of 100
        (POD, 25),  # beside one that claims all that it uses
        (f"{POD}/container", 10),
        (f"{POD}/all", 17),  # 25 of the 25 and 10 that are claimed of 25
        ("system.slice", None),
        ("kubepods/none", None),
    ],
)
def test_none_keeps_more_than_its_share_of_what_its_parent_keeps(
    path: str, expected: int | None, places: Places, file: CgroupFile
) -> None:
    assert protection_in_effect(places, path, file) == expected


def test_a_level_that_cannot_be_read_leaves_nothing_known(places: Places, file: CgroupFile, tmp_path: Path) -> None:
    (tmp_path / "kubepods/besteffort" / file.value).write_text("garbage\n")
    assert protection_in_effect(places, POD, file) is None
    assert protection_in_effect(places, "kubepods/burstable", file) == 70
