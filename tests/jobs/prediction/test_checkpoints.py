"""Models of prediction in files: complete or not there, koordlet's among them, and nothing of one UID harms another."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from koordebpf.jobs.prediction import keeper as module
from koordebpf.jobs.prediction.checkpoint import encode_checkpoint
from koordebpf.jobs.prediction.keeper import CheckpointFolder, CheckpointKeeper, Found, newest, read_checkpoints
from koordebpf.jobs.prediction.models import Usage
from koordebpf.jobs.prediction.predict import trained
from koordebpf.state.prediction import HalfLives
from koordebpf.units import NS_PER_S

HALF_LIVES = HalfLives(12 * 3600 * NS_PER_S, 24 * 3600 * NS_PER_S)
NOW_NS = 1_772_702_621 * NS_PER_S


def content(cores: float = 1.0, at_ns: int = NOW_NS) -> bytes:
    (model,) = trained({}, {"u": Usage(cores, 1e9)}, at_ns, HALF_LIVES).values()
    return encode_checkpoint(model.checkpoint("u", at_ns))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "prediction"


def kept(path: Path, *uids: str) -> Found:
    return read_checkpoints(path, frozenset(uids))


def test_what_was_saved_is_read_again(path):
    CheckpointFolder(path).save("u-1", content())
    found = kept(path, "u-1", "u-2")
    assert list(found.checkpoints) == ["u-1"] and found.problems == ()
    assert found.checkpoints["u-1"].updated_ns == NOW_NS
    assert (path.stat().st_mode & 0o777, (path / "u-1").stat().st_mode & 0o777) == (0o700, 0o600)


def test_a_save_that_fails_leaves_the_file_before(path, monkeypatch):
    folder = CheckpointFolder(path)
    folder.save("u-1", content(1.0))

    def full(_fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        folder.save("u-1", content(64.0))
    assert (path / "u-1").read_bytes() == content(1.0)
    assert [each.name for each in path.iterdir()] == ["u-1"]


@pytest.mark.parametrize("cut", [0, 1, 20, 200])
def test_a_file_that_was_cut_is_set_aside_and_the_others_are_read(path, cut):
    folder = CheckpointFolder(path)
    folder.save("good", content())
    (path / "bad").write_bytes(content()[:cut])
    found = folder.load(frozenset(("good", "bad")))
    assert list(found.checkpoints) == ["good"]
    (problem,) = found.problems
    assert str(path / "bad") in problem
    assert {each.name for each in path.iterdir()} == {"good", "bad.corrupt"}
    folder.load(frozenset(("good", "bad")))
    assert {each.name for each in path.iterdir()} == {"good"}


def test_files_of_unknown_uids_and_unfinished_ones_are_removed(path):
    folder = CheckpointFolder(path)
    for uid in ("a", "b"):
        folder.save(uid, content())
    (path / "a.tmp").write_bytes(b"{")
    folder.load(frozenset(("a",)))
    assert [each.name for each in path.iterdir()] == ["a"]


def test_of_more_files_than_any_node_has_pods_so_many_are_looked_at_each_time(path, monkeypatch):
    monkeypatch.setattr(module, "_MOST_FILES", 3)
    folder = CheckpointFolder(path)
    for number in range(5):
        folder.save(f"u{number}", content())
    assert len(kept(path, *(f"u{number}" for number in range(5))).checkpoints) == 3
    folder.load(frozenset())
    assert len(list(path.iterdir())) == 2
    folder.load(frozenset())
    assert not any(path.iterdir())


def test_koordlets_folder_is_only_read(tmp_path):
    theirs = tmp_path / "koordlet"
    for uid in ("a", "gone"):
        CheckpointFolder(theirs).save(uid, content())
    (theirs / "b").write_bytes(b"{")
    (theirs / "c.tmp").write_bytes(b"{")
    before = {each.name: each.read_bytes() for each in theirs.iterdir()}
    keeper = CheckpointKeeper(tmp_path / "ours", theirs, writes=True)
    keeper.restore(("a", "b"))
    assert keeper.close(10)
    assert keeper.found is not None and list(keeper.found.checkpoints) == ["a"]
    assert {each.name: each.read_bytes() for each in theirs.iterdir()} == before


def test_of_two_files_of_a_uid_the_newer_counts(tmp_path):
    CheckpointFolder(tmp_path / "one").save("u", content(1.0, NOW_NS))
    CheckpointFolder(tmp_path / "two").save("u", content(2.0, NOW_NS + NS_PER_S))
    one, two = kept(tmp_path / "one", "u"), kept(tmp_path / "two", "u")
    assert newest(one, two).checkpoints == newest(two, one).checkpoints == two.checkpoints


@pytest.mark.parametrize(
    "uid", ["../escaped", "a/b", "", ".", "..", "a\0b", ".hidden", "x" * 300, "u.tmp", "u.corrupt"]
)
def test_a_uid_that_is_no_file_name_is_not_kept(path, uid):
    folder = CheckpointFolder(path)
    folder.save("u", content())
    folder.save(uid, content())
    folder.remove(uid)
    assert [str(each.relative_to(path.parent.parent)) for each in path.parent.rglob("*") if each.is_file()] == [
        "run/prediction/u"
    ]


def test_what_is_no_regular_file_is_not_followed_or_waited_for(path, tmp_path):
    path.mkdir(parents=True)
    (tmp_path / "secret").write_bytes(content())
    (path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(path / "pipe")
    (path / "folder").mkdir()
    (path / "large").write_bytes(b" " * 70_000)
    found = kept(path, "link", "pipe", "folder", "large")
    assert found.checkpoints == {} and len(found.problems) == 3


def test_one_that_only_watches_changes_nothing(path):
    CheckpointFolder(path).save("gone", content())
    keeper = CheckpointKeeper(path, None, writes=False)
    keeper.restore(("u",))
    keeper.write({"u": content()}, ("gone",))
    assert keeper.close(10)
    assert [each.name for each in path.iterdir()] == ["gone"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    keeper = CheckpointKeeper(tmp_path / "file" / "prediction", None, writes=True)
    keeper.restore(("u",))
    keeper.write({"u": content()})
    assert keeper.close(10)
    assert keeper.found == Found({})
    assert keeper.problem and f"{tmp_path / 'file' / 'prediction'}: {keeper.problem}" in caplog.text


def test_saved_and_removed_in_the_order_of_the_calls(path):
    keeper = CheckpointKeeper(path, None, writes=True)
    keeper.write({"a": content(), "b": content()})
    keeper.write({"c": content()}, ("a",))
    assert keeper.close(10) and not keeper.is_busy
    assert sorted(each.name for each in path.iterdir()) == ["b", "c"]
