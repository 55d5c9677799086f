"""A small file is read and written as the one that was read before."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from koordebpf.errors import CgroupGone, ConfigError, KernelFileError
from koordebpf.kernel.io.regular_file import read_given_file, read_regular_file
from koordebpf.kernel.io.text_file import OpenKernelFiles, Overtaken, read_kernel_file, write_kernel_file


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "pod").mkdir()
    (tmp_path / "pod/memory.high").write_text("8192\n")
    return tmp_path / "pod/memory.high"


def test_text_and_inode(file: Path) -> None:
    read = read_kernel_file(file)
    assert (read.text, read.inode) == ("8192\n", file.stat().st_ino)


@pytest.mark.parametrize(("size", "is_good"), [((1 << 15) - 1, True), (1 << 15, False)])
def test_one_that_is_too_long_is_an_error(file: Path, size: int, is_good: bool) -> None:
    file.write_text("x" * size)
    if is_good:
        assert len(read_kernel_file(file).text) == size
    else:
        for read in (read_kernel_file, OpenKernelFiles().read):
            with pytest.raises(KernelFileError, match="must be under 32768 bytes"):
                read(file)


@pytest.mark.parametrize("read", [read_kernel_file, OpenKernelFiles().read])
def test_a_file_that_the_kernel_has_not_is_not_a_cgroup_that_is_gone(file: Path, read) -> None:
    file.unlink()
    with pytest.raises(FileNotFoundError):
        read(file)
    file.with_name("file").write_text("")
    with pytest.raises(NotADirectoryError):
        read(file.with_name("file") / "memory.high")
    file.with_name("file").unlink()
    file.parent.rmdir()
    with pytest.raises(CgroupGone):
        read(file)


def test_a_link_is_not_followed(file: Path) -> None:
    link = file.with_name("link")
    link.symlink_to(file)
    with pytest.raises(OSError, match="symbolic links"):
        read_kernel_file(link)


class TestKeptOpen:
    def test_the_same_file_is_read_until_it_is_kept_no_longer(self, file: Path) -> None:
        files = OpenKernelFiles()
        first = files.read(file)
        file.rename(file.with_name("old"))
        file.write_text("4096\n")
        assert files.read(file) == first
        files.close_all_but([file])
        assert files.read(file) == first
        files.close_all_but([file.with_name("old")])
        assert files.read(file).text == "4096\n"
        files.close(file)
        files.close(file)

    def test_beyond_so_many_none_is_kept_open(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("koordebpf.kernel.io.text_file._MAX_OPEN", 1)
        files, other = OpenKernelFiles(), file.with_name("memory.low")
        other.write_text("1\n")
        files.read(file)
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        assert files.read(other).text == "1\n"
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
        files.close(file)


class TestWritten:
    def test_each_text_is_written_by_itself_and_what_it_holds_then_is_read(self, file: Path) -> None:
        wrote: list[str] = []
        assert write_kernel_file(file, ["40", "96"], file.stat().st_ino, wrote.append) == "4096\n"
        assert wrote == ["40", "96"]
        assert write_kernel_file(file, ["12"], None) == "1296\n"

    @pytest.mark.parametrize(("name", "waits"), [("memory.high", False), ("memory.max", True)])
    def test_only_the_reclaim_of_a_lower_limit_is_left_to_others(self, file: Path, name: str, waits: bool) -> None:
        path, flags = file.with_name(name), []
        path.write_text("8192\n")

        def look(_text: str) -> None:
            (fd,) = [fd for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink() and fd.readlink() == path]
            flags.append(os.get_blocking(int(fd.name)))

        write_kernel_file(path, ["4096"], None, look)
        assert flags == [waits]

    def test_another_file_of_its_name_is_not_written(self, file: Path) -> None:
        with pytest.raises(CgroupGone):
            write_kernel_file(file, ["4096"], file.stat().st_ino + 1)
        assert file.read_text() == "8192\n"

    def test_one_that_holds_something_else_by_now_is_not_written(self, file: Path) -> None:
        with pytest.raises(Overtaken):
            write_kernel_file(file, ["4096"], None, may_write=lambda text: text == "1\n")
        assert file.read_text() == "8192\n"
        assert write_kernel_file(file, ["4096"], None, may_write=lambda text: text == "8192\n")

    def test_what_the_kernel_says_against_it_is_an_error_of_its_own(self, tmp_path: Path) -> None:
        with pytest.raises(OSError, match="No space"):
            write_kernel_file(Path("/dev/full"), ["1"], None)
        with pytest.raises(FileNotFoundError):
            write_kernel_file(tmp_path / "memory.high", ["1"], None)


class TestOfAFolderThatOthersMayWriteTo:
    def test_a_bound_takes_no_memory(self, file: Path) -> None:
        tracemalloc.start()
        try:
            assert read_regular_file(file, 1 << 40) == b"8192\n"
            assert read_given_file(file, 1 << 40) == b"8192\n"
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()

    def test_a_regular_file_is_read(self, file: Path) -> None:
        assert read_regular_file(file, 5) == b"8192\n"

    def test_one_that_is_longer_is_an_error(self, file: Path) -> None:
        file.write_text("81920\n")
        with pytest.raises(ConfigError, match=r"5 bytes or more.*must be 4 bytes or less"):
            read_regular_file(file, 4)

    def test_a_pipe_is_not_waited_for_nor_a_link_followed(self, file: Path) -> None:
        os.mkfifo(file.with_name("pipe"))
        with pytest.raises(ConfigError, match="must be a regular file"):
            read_regular_file(file.with_name("pipe"), 5)
        file.with_name("link").symlink_to(file)
        with pytest.raises(ConfigError, match="must be a regular file"):
            read_regular_file(file.with_name("link"), 5)
