"""Notices of soft evictions: in the pod's own directory, where it may have put anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from koordebpf.policy.strategy import SoftNotice
from koordebpf.strategies.katalyst.sink import NOTICE, NoticeFolders, PodNotifier
from tests.contract.apiserver import until

FOLDER = "web@@__@@default"


@pytest.fixture
def folders(tmp_path: Path) -> NoticeFolders:
    made = NoticeFolders(tmp_path / "notices")
    made.keep([("default", "web")])
    return made


def test_a_pod_finds_the_last_notice_alone(folders: NoticeFolders, tmp_path: Path) -> None:
    for text in ("a long first one", "second"):
        folders.notify("default", "web", text)
    assert (tmp_path / "notices" / FOLDER / NOTICE).read_text() == "second"


def test_a_thousand_notices_leave_no_file_open(folders: NoticeFolders) -> None:
    folders.notify("default", "web", "first")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(1000):
        folders.notify("default", "web", str(number))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_every_user_may_write_its_own_directory_and_none_the_root(folders: NoticeFolders, tmp_path: Path) -> None:
    assert (tmp_path / "notices" / FOLDER).stat().st_mode & 0o777 == 0o777
    assert (tmp_path / "notices").stat().st_mode & 0o022 == 0


@pytest.mark.parametrize("kind", ["symlink", "hard link", "fifo", "directory"])
def test_what_a_pod_has_put_in_its_place_is_not_written(folders: NoticeFolders, tmp_path: Path, kind: str) -> None:
    target, place = tmp_path / "of-the-host", tmp_path / "notices" / FOLDER / NOTICE
    target.write_text("keep")
    match kind:
        case "symlink":
            place.symlink_to(target)
        case "hard link":
            place.hardlink_to(target)
        case "fifo":
            os.mkfifo(place)
        case _:
            place.mkdir()
    with pytest.raises(OSError):
        folders.notify("default", "web", "text")
    assert target.read_text() == "keep"


def test_a_directory_that_became_a_link_is_not_followed(folders: NoticeFolders, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "notices" / FOLDER).rmdir()
    (tmp_path / "notices" / FOLDER).symlink_to(elsewhere)
    with pytest.raises(OSError):
        folders.notify("default", "web", "text")
    assert list(elsewhere.iterdir()) == []


def test_directories_of_pods_that_are_gone_are_removed_and_others_stay(folders: NoticeFolders, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("keep")
    (tmp_path / "notices" / FOLDER / "link").symlink_to(outside)
    (tmp_path / "notices" / "of-others").mkdir()
    folders.keep([("default", "other")])
    assert {path.name for path in (tmp_path / "notices").iterdir()} == {"other@@__@@default", "of-others"}
    assert (outside / "file").read_text() == "keep"


def test_the_notifier_counts_what_it_sent_and_what_failed(tmp_path: Path) -> None:
    notifier = PodNotifier(tmp_path / "notices")
    try:
        notifier.keep([("default", "web")])
        notifier.notify(SoftNotice("default", "web", "p", "because", "uid-web"))
        notifier.notify(SoftNotice("default", "absent", "p", "because", "uid-absent"))
        until(lambda: (notifier.sent, notifier.failed) == (1, 1), "one notice sent, one failed")
        (first, none), (second, problem) = notifier.drain_ended()
        assert (first.uid, none, second.uid) == ("uid-web", None, "uid-absent")
        assert problem is not None and "No such file or directory" in problem
        assert notifier.drain_ended() == []
    finally:
        notifier.close()
    assert (tmp_path / "notices" / FOLDER / NOTICE).read_text().startswith("20")
