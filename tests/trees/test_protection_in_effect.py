"""`pod explain` on trees of cgroup v2: what memory.min and memory.low come to."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordebpf.act.writer.places import Places
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.tools.pod_explain import protection_in_effect

LOW = CgroupFile.MEMORY_LOW
POD = "kubelet/kubepods/burstable/pod1"


def in_effect(root: Path, lows: dict[str, str], used: int = 1000, path: str = POD) -> int | None:
    for name, text in lows.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        (root / name / "memory.low").write_text(f"{text}\n")
        (root / name / "memory.current").write_text(f"{used}\n")
    return protection_in_effect(Places({"memory": ControllerMount(2, root)}), path, LOW)


ABOVE = {"kubelet": "0", "kubelet/kubepods": "400", "kubelet/kubepods/burstable": "400"}


def test_a_pod_whose_directories_have_as_much_has_all_of_it(tmp_path: Path) -> None:
    assert in_effect(tmp_path, {**ABOVE, POD: "400"}) == 400


def test_pods_that_claim_more_than_their_directory_has_share_it(tmp_path: Path) -> None:
    assert in_effect(tmp_path, {**ABOVE, POD: "400", "kubelet/kubepods/burstable/pod2": "400"}) == 200
    # One with max claims what it uses.
    assert in_effect(tmp_path, {"kubelet/kubepods/burstable/pod2": "max"}, used=1200) == 100


def test_what_a_pod_beside_it_does_not_use_is_not_claimed(tmp_path: Path) -> None:
    assert in_effect(tmp_path, {**ABOVE, POD: "200", "kubelet/kubepods/burstable/pod2": "400"}, used=100) == 200


@pytest.mark.parametrize("path", ["system.slice/a", f"{POD}/gone"])
def test_what_is_no_pods_or_is_gone_is_not_known(tmp_path: Path, path: str) -> None:
    assert in_effect(tmp_path, {**ABOVE, POD: "400"}, path=path) is None
