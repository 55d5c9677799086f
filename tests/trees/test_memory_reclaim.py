"""What is asked of memory.reclaim: pieces, until it is enough, of the pod that was meant."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from koordebpf.errors import ActuationError, CgroupGone, SupportError
from koordebpf.kernel.cgroup.pod_directory import bears, open_pod_directory
from koordebpf.kernel.cgroup.reclaim import reclaim
from koordebpf.units import MIB

MakeTree = Callable[[dict[str, Any]], Path]


@pytest.fixture
def pod(tree: MakeTree) -> Path:
    return tree({"pod1-2": {"memory.reclaim": ""}}) / "pod1-2"


def asked(pod: Path, size_bytes: int, times: int = 100, **options: Any) -> tuple[int, str]:
    """Return what was taken and all that was written; it is enough after so many pieces."""
    left = [False] * times + [True]
    taken = reclaim(pod, pod.stat().st_ino, size_bytes, lambda: left.pop(0), **options)
    return taken, (pod / "memory.reclaim").read_text()


def test_it_is_asked_for_in_pieces(pod: Path) -> None:
    assert asked(pod, 40 * MIB) == (40 * MIB, f"{16 * MIB}{16 * MIB}{8 * MIB}")


def test_it_ends_where_it_is_enough(pod: Path) -> None:
    assert asked(pod, 40 * MIB, times=1) == (16 * MIB, str(16 * MIB))


@pytest.mark.parametrize(("options", "text"), [({}, "5"), ({"swappiness": 0}, "5 swappiness=0")])
def test_swappiness_is_said_only_where_it_is_given(pod: Path, options: dict[str, int], text: str) -> None:
    assert asked(pod, 5, **options) == (5, text)


# Of a file that takes no such text, and of a device that is full.
@pytest.mark.parametrize(
    ("file", "number", "options", "raised"),
    [
        ("/proc/self/oom_score_adj", errno.EINVAL, {}, OSError),
        ("/proc/self/oom_score_adj", errno.EINVAL, {"swappiness": 0}, SupportError),
        ("/dev/full", errno.ENOSPC, {"swappiness": 0}, OSError),
    ],
)
def test_a_kernel_without_swappiness_is_not_one_that_refuses(
    pod: Path, file: str, number: int, options: dict[str, int], raised: type[Exception]
) -> None:
    (pod / "memory.reclaim").unlink()
    (pod / "memory.reclaim").symlink_to(file)
    with pytest.raises(raised) as caught:
        asked(pod, 40 * MIB, **options)
    assert getattr(caught.value, "errno", number) == number


def test_a_kernel_without_the_file_is_not_a_pod_that_is_gone(pod: Path) -> None:
    (pod / "memory.reclaim").unlink()
    with pytest.raises(SupportError, match=r"cgroup v2 and Linux 5\.19"):
        reclaim(pod, pod.stat().st_ino, 5, lambda: False)
    inode = pod.stat().st_ino
    pod.rmdir()
    with pytest.raises(CgroupGone):
        reclaim(pod, inode, 5, lambda: False)


class TestThePodThatWasMeant:
    def test_it_is_the_one_of_this_id_and_name(self, pod: Path) -> None:
        for cgroup_id in (None, pod.stat().st_ino):
            for names in ((), ("1-2",), ("9", "1-2")):
                directory = open_pod_directory(pod, cgroup_id, names)
                assert os.fstat(directory).st_ino == pod.stat().st_ino
                os.close(directory)

    def test_another_one_of_its_name_is_none(self, pod: Path) -> None:
        with pytest.raises(CgroupGone):
            open_pod_directory(pod, pod.stat().st_ino + 1, ())
        with pytest.raises(CgroupGone):
            open_pod_directory(pod / "memory.reclaim", None, ())

    def test_one_that_bears_another_name_is_left_alone_and_closed(self, pod: Path) -> None:
        before = os.listdir("/proc/self/fd")  # noqa: PTH208
        for names in (("1-23",), ("",)):
            with pytest.raises(ActuationError, match="left alone"):
                open_pod_directory(pod, None, names)
        assert len(os.listdir("/proc/self/fd")) == len(before)  # noqa: PTH208

    def test_the_name_is_the_one_it_has_now(self, pod: Path) -> None:
        link = pod.with_name("pod9")
        link.symlink_to(pod)
        with pytest.raises(ActuationError):
            open_pod_directory(link, None, ("9",))

    @pytest.mark.parametrize(
        ("name", "is_its"),
        [
            ("pod1-2", True),
            ("kubepods-besteffort-pod1_2.slice", True),
            ("kubepods-besteffort-pod1-2.slice", False),
            ("pod1_2", False),
            ("pod1-2.slice", False),
            ("pod", False),
        ],
    )
    def test_both_cgroup_drivers_have_a_name_for_it(self, name: str, is_its: bool) -> None:
        assert bears(name, ["1-2"]) is bears(name, ["", "9", "1-2"]) is is_its
