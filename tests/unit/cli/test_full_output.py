"""Standard output that takes no more: one line, and an exit code that is not taken for a result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FRAME = Path(__file__).parents[2] / "scenarios/frames/hog-is-evicted.json"
KOORDEBPF = (sys.executable, "-m", "koordebpf")
KUBECTL = (sys.executable, "-c", "from koordebpf.cli.kubectl import main; main()")
# A line at a time, all at once, as bytes, and what click prints by itself.
COMMANDS = {
    "page": (*KOORDEBPF, "plan", str(FRAME)),
    "JSON": (*KOORDEBPF, "plan", "--json", str(FRAME)),
    "text": (*KOORDEBPF, "config", "show"),
    "help": (*KOORDEBPF, "--help"),
    "kubectl": (*KUBECTL, "--version"),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_on_a_full_disk_it_says_so_in_one_line(command: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    name = "kubectl koordebpf" if command[: len(KUBECTL)] == KUBECTL else "koordebpf"
    said = f"{name}: standard output: No space left on device; what was not written is lost\n"
    assert (done.returncode, done.stderr) == (74, said)


def test_the_end_of_who_reads_is_no_result() -> None:
    with subprocess.Popen(COMMANDS["JSON"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert (process.wait(60), process.stderr.read()) == (141, b"")


def test_without_standard_output_it_does_what_was_asked() -> None:
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *COMMANDS["page"]], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
