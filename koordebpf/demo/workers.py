"""The processes of the demo's pods. Started as `python -m koordebpf.demo.workers`; imports nothing of the package.

Each joins its cgroup first, then works, and prints JSON lines: `{"at_ns": …, "event": …}` with CLOCK_MONOTONIC times.
The trouble that one makes starts with its event `begins`. All end on SIGTERM, and none takes more memory than its
argument says.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import signal
import sys
import time
from types import FrameType

MIB = 1 << 20
PAGE_BYTES = mmap.PAGESIZE
_ROUND_MIB = 2  # the LS pod's allocation per round: as a request handler's working set
_ROUND_S = 0.002
_TELL_NS = 250_000_000  # rounds are printed in lines of this length, between two rounds


def _print_event(event: str, **numbers: object) -> None:
    print(json.dumps({"at_ns": time.monotonic_ns(), "event": event, **numbers}), flush=True)


def _touch(memory: mmap.mmap, begin: int, end: int) -> None:
    for at in range(begin, end, PAGE_BYTES):
        memory[at] = 1


def _map(mib: int) -> mmap.mmap:
    memory = mmap.mmap(-1, mib * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return memory


class _Stopped(Exception):
    pass


def latency_sensitive(mib: int, seconds: float) -> None:
    """Hold `mib`, and every 2 ms fault in a few MiB more and free them; print how long each round took."""
    held = _map(mib)
    _touch(held, 0, mib * MIB)
    _print_event("ready", mib=mib)
    rounds: list[tuple[int, int]] = []
    printed_ns = time.monotonic_ns()
    end_ns = printed_ns + int(seconds * 1e9)
    try:
        while (begin_ns := time.monotonic_ns()) < end_ns:
            with _map(_ROUND_MIB) as memory:
                _touch(memory, 0, _ROUND_MIB * MIB)
            rounds.append((begin_ns, time.monotonic_ns() - begin_ns))
            if begin_ns - printed_ns >= _TELL_NS:
                _print_event("rounds", rounds_ns=rounds)
                rounds, printed_ns = [], begin_ns
            time.sleep(_ROUND_S)
    except _Stopped:
        pass
    _print_event("rounds", rounds_ns=rounds)
    _print_event("end")


def hog(mib: int, mib_per_s: float, wait_s: float) -> None:
    """Wait, then grow to `mib` at `mib_per_s` and hold; say each 100 MiB."""
    memory = _map(mib)
    _print_event("ready", mib=0)
    try:
        time.sleep(wait_s)
        _print_event("begins", mib_per_s=mib_per_s)
        begin = time.monotonic()
        for done in range(mib):
            _touch(memory, done * MIB, (done + 1) * MIB)
            if (done + 1) % 100 == 0:
                _print_event("grown", mib=done + 1)
            ahead_s = begin + (done + 1) / mib_per_s - time.monotonic()
            if ahead_s > 0:
                time.sleep(ahead_s)
        _print_event("full", mib=mib)
        while True:
            time.sleep(60)
    except _Stopped:
        _print_event("end")


# A file without blocks: reading it fills the page cache and leaves the disk in peace. It has no name, so that nothing
# is left behind, also after a SIGKILL.
def _hollow_file(directory: str, mib: int) -> int:
    path = os.path.join(directory, f"koordebpf-demo-{os.getpid()}.hollow")  # noqa: PTH118 - imports are kept small
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.unlink(path)  # noqa: PTH108
    os.ftruncate(fd, mib * MIB)
    return fd


def page_cache(directory: str, mib: int, wait_s: float, seconds: float) -> None:
    """Wait, then read a file of `mib`, over and over: page cache that the kernel reclaims when it is needed."""
    fd = _hollow_file(directory, mib)
    _print_event("ready", mib=0)
    done = 0
    try:
        time.sleep(wait_s)
        _print_event("begins")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            os.pread(fd, MIB, done % mib * MIB)
            done += 1
    except _Stopped:
        pass
    os.close(fd)
    _print_event("end", mib=done)


def own_limit(directory: str, mib: int, wait_s: float, seconds: float) -> None:
    """Wait, then walk a mapped file of `mib`, more than the pod's own limit lets stay: it reclaims from itself."""
    fd = _hollow_file(directory, mib)
    _print_event("ready", mib=0)
    walks = 0
    try:
        with mmap.mmap(fd, mib * MIB, mmap.MAP_SHARED, mmap.PROT_READ) as memory:
            time.sleep(wait_s)
            _print_event("begins")
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                for at in range(0, mib * MIB, PAGE_BYTES):
                    memory[at]
                walks += 1
    except _Stopped:
        pass
    os.close(fd)
    _print_event("end", walks=walks)


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise _Stopped


def main() -> None:
    """Join the cgroup, then be the worker that the arguments name."""
    parser = argparse.ArgumentParser(prog="koordebpf.demo.workers")
    parser.add_argument("kind", choices=("ls", "hog", "page-cache", "own-limit"))
    parser.add_argument("--procs", required=True, help="cgroup.procs to join")
    parser.add_argument("--directory", default="/var/tmp")
    parser.add_argument("--mib", type=int, required=True)
    parser.add_argument("--mib-per-s", type=float, default=100.0)
    parser.add_argument("--wait-s", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    with open(given.procs, "w") as procs:  # noqa: PTH123
        procs.write(str(os.getpid()))
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the demo's to handle
    match given.kind:
        case "ls":
            latency_sensitive(given.mib, given.seconds)
        case "hog":
            hog(given.mib, given.mib_per_s, given.wait_s)
        case "page-cache":
            page_cache(given.directory, given.mib, given.wait_s, given.seconds)
        case _:
            own_limit(given.directory, given.mib, given.wait_s, given.seconds)
    sys.exit(0)


if __name__ == "__main__":
    main()
