"""What a kernel's log says that it must not: warnings and splats, without the OOM reports that tests provoke."""

from __future__ import annotations

import re

import msgspec

from tests.vm.marks import WORD

_SPLAT = re.compile(
    r"WARNING:|\bBUG:|Oops|Call Trace:|Kernel panic|general protection fault|[Uu]nable to handle"
    r"|blocked for more than|detected (expedited )?stalls|self-detected stall|soft lockup|hard LOCKUP"
    r"|UBSAN|KASAN|KCSAN|possible (circular|recursive) locking|suspicious RCU usage|refcount_t:"
    r"|list_(add|del) corruption|page allocation failure"
)
# An OOM report has a call trace of the task that could not allocate. It ends with whom it kills, or that it cannot.
_OOM_BEGINS = re.compile(r"invoked oom-killer:")
_OOM_ENDS = re.compile(r"oom-kill:constraint|Killed process|no killable processes")
_OOM_HAS = re.compile(r"Call Trace:")


# The panic of a guest that was asked where it hangs (tests/vm/monitor.py), and what comes behind all stacks.
_ASKED = "Kernel panic - not syncing: NMI: Not continuing"
_BEHIND_STACKS = "Sched Debug Version"
_TASK = "] task:"
_OURS = "] task:python"


class Splat(msgspec.Struct, frozen=True):
    """A line that must not be there, and the test that ran."""

    line: str
    test: str  # "": none had started


def last_test(log: str) -> str:
    """Return the test that began last; "": none had started."""
    return log.rpartition(WORD)[2].partition("\n")[0].strip() if WORD in log else ""


def stacks(console: str) -> list[str]:
    """Return what each CPU did when a guest was asked, and where the tests' processes were; none: it did not say."""
    kept: list[str] = []
    is_kept = False
    for line in console.splitlines():
        if _ASKED in line:
            is_kept = True
        elif _BEHIND_STACKS in line:
            break
        elif kept and _TASK in line:
            is_kept = _OURS in line
        if is_kept:
            kept.append(line)
    return kept


def splats(log: str) -> list[Splat]:
    """Return what must not be there, in the order of the log; one for each splat's first lines."""
    found: list[Splat] = []
    test, in_oom = "", False
    for line in log.splitlines():
        if WORD in line:
            test = line.split(WORD)[1].strip()
        elif _OOM_BEGINS.search(line):
            in_oom = True
        elif _OOM_ENDS.search(line):
            in_oom = False
        elif _SPLAT.search(line) and not (in_oom and _OOM_HAS.search(line)) and _ASKED not in line:
            found.append(Splat(line.strip(), test))
    return found
