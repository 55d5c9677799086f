"""The slice of best-effort pods in the guest, and what its files hold where nothing is held."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from koordebpf.kernel.cgroup.files import parse_cpu_list
from tests.node.followed import Span

BE = "kubepods-besteffort.slice"
FOLDER = f"/sys/fs/cgroup/kubepods.slice/{BE}"
QUOTA = f"{FOLDER}/cpu.max"
NO_QUOTA = "max 100000"
_LIFTED_S = 1.0  # ten times as long as the agent lets a reset by systemd stand


def lifted(spans: Iterable[Span], values: Collection[str] = (NO_QUOTA,)) -> list[Span]:
    """Return when a limit was lifted for longer than the agent lets a reset stand; `values` are those of no limit."""
    return [span for span in spans if span.value in values and span.seconds >= _LIFTED_S]


def cpus_of(text: str) -> set[int]:
    """Return the CPUs of a list as the kernel prints it."""
    return set(parse_cpu_list(text.strip(), "cpuset.cpus"))
