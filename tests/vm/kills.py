"""By which kernel interfaces pods are killed here, as `koordebpf doctor` finds out, and the table of it.

The table is in docs/qos/README.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from koordebpf.kernel.bpf.deadman import support_of_dead_man
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from koordebpf.kernel.host.support import support_of_files
from tests.vm.strategies import cell_of


class KillPart(NamedTuple):
    """One interface: what it is used for, since which release it is there, and how an agent finds out.

    Attributes:
        signal: the line of `koordebpf doctor` that says so.
        words: what stands in that line where the interface is used.
    """

    does: str
    by: str
    since: str
    found_out: str
    signal: str
    words: str

    @property
    def name(self) -> str:
        """What it is called in results."""
        return f"kill: {self.does}"


_KILL, _DEAD_MAN = "kill a cgroup", "dead man's switch"
PARTS = (
    KillPart("end all processes of a pod at once", "`cgroup.kill`", "5.14",
             "opens the file at each kill; without it, the next row", _KILL, "cgroup.kill"),
    KillPart("where that is missing: freeze them, then signal each", "`cgroup.freeze`, `freezer.state`",
             "5.2, v1 2.6.28",
             "writes the file at each kill; without it, signals in rounds", _KILL, "then SIGKILL by pidfd"),
    KillPart("free a victim's memory before it exits", "`process_mrelease`", "5.15",
             "calls it; ENOSYS: its memory comes back as it exits", "early release of a victim", "process_mrelease"),
    KillPart("dead man's switch", "`bpf_send_signal_task`", "6.13",
             "loads the programs; refused: logs it and runs without the switch", _DEAD_MAN, "bpf_send_signal_task"),
    KillPart("dead man's switch: count what PSI counts", "fentry of `psi_memstall_enter`", "6.13",
             "attaches them; refused: counts direct reclaim alone", _DEAD_MAN, "counts what PSI counts"),
)  # fmt: skip


def try_all() -> dict[str, str]:
    """Return for each part what `koordebpf doctor` says of it here, "" where it is not used."""
    said = {each.signal: each.how for each in support_of_files(find_memory_hierarchy()) if each.works}
    dead_man = support_of_dead_man()
    said |= {dead_man.signal: dead_man.how} if dead_man.works else {}
    found = {part: said.get(part.signal, "") for part in PARTS}
    return {part.name: how if part.words in how else "" for part, how in found.items()}


def rows(found: Mapping[str, Mapping[str, str]]) -> Iterable[list[str]]:
    """Yield the rows of the table: a head, then one for each part; `found` is by column."""
    yield ["kill", "by", "since", "how the agent finds out", *found]
    for part in PARTS:
        cells = [cell_of(column.get(part.name)) for column in found.values()]
        yield [part.does, part.by, part.since, part.found_out, *cells]
