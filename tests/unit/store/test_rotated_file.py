"""What of a file that is rotated by its size stays on the disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordebpf.store.rotated_file import RotatedFile

LINES = [f"line {number}\n".encode() for number in range(10)]  # of 7 bytes


def on_disk(folder: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in folder.iterdir()}


@pytest.mark.parametrize(
    ("kept", "files"),
    [
        (0, {"log": LINES[8:]}),
        (1, {"log": LINES[8:], "log.1": LINES[6:8]}),
        (2, {"log": LINES[8:], "log.1": LINES[6:8], "log.2": LINES[4:6]}),
    ],
)
def test_so_many_files_are_kept_beside_it_each_filled_to_the_last_byte(
    tmp_path: Path, kept: int, files: dict[str, list[bytes]]
) -> None:
    file = RotatedFile(tmp_path / "log", max_bytes=14, kept=kept)
    for line in LINES:
        file.append(line)
    assert on_disk(tmp_path) == {name: b"".join(lines) for name, lines in files.items()}


def test_a_line_that_is_too_long_for_any_file_is_whole_in_one_of_its_own(tmp_path: Path) -> None:
    file = RotatedFile(tmp_path / "log", max_bytes=5, kept=1)
    file.append(LINES[0])
    assert on_disk(tmp_path) == {"log": LINES[0]}
    file.append(LINES[1])
    assert on_disk(tmp_path) == {"log": LINES[1], "log.1": LINES[0]}
