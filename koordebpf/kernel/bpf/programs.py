"""The BPF programs: where they are, compiled and as C, and what each is to a reader of `doctor`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from koordebpf.errors import SupportError
from koordebpf.kernel.bpf.lockdown import explain_refusal
from koordebpf.kernel.signals import SignalSource

_KERNEL = Path(__file__).parents[1]
_PACKAGED = _KERNEL / "objects"
_CHECKOUT = _KERNEL.parents[1] / "bpf" / "build"
_PACKAGED_SOURCES = _KERNEL / "sources"
SCAN = "scan_memcgs"
SCAN_TOPIC = "memcg_iter"  # CO-RE only
# What is left open, or not known of, where the kernel passes over a run of one of these.
ENDS = (
    "on_mm_vmscan_direct_reclaim_end",
    "on_mm_vmscan_memcg_reclaim_end",
    "on_mm_compaction_end",
    "on_psi_memstall_leave",
)
LIFECYCLE = ("on_cgroup_mkdir", "on_cgroup_rmdir", "on_cgroup_rename")
EVERY_STALL = "every memory stall the kernel counts"
# Topic (a file in bpf/) → its programs → signal, cost of its absence. A program that only helps another is not named.
SIGNALS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "reclaim": {
        "on_mm_vmscan_direct_reclaim_begin": (
            "global reclaim stalls",
            "stalls of the node's own shortage are not timed",
        ),
        "on_mm_vmscan_memcg_reclaim_begin": (
            "memcg-limit reclaim stalls",
            "a pod that thrashes in its limit is not seen",
        ),
        "on_mm_vmscan_kswapd_wake": ("kswapd activity", "background reclaim is not counted"),
    },
    "compaction": {
        "on_mm_compaction_begin": ("compaction stalls", "waits for large blocks of memory are not timed"),
        "on_mm_vmscan_throttled": ("throttled reclaim", "sleeps inside reclaim are not separated from it"),
    },
    "memstall": {
        "on_psi_memstall_enter": (
            EVERY_STALL,
            "refaults, swap-ins and sleeps at memory.high are not timed; reclaim and compaction are",
        ),
    },
    "oom": {"on_mark_victim": ("OOM kills with their cgroup", "OOM kills are not reported")},
    "cgroups": {
        "on_cgroup_mkdir": ("cgroup births and deaths", "new pods are found by rescans, up to a second late"),
        "on_cgroup_rename": ("cgroup renames", "a renamed cgroup is found by the next rescan"),
        "on_cgroup_notify_populated": ("first and last tasks of cgroups", "they are not reported"),
        "on_cgroup_attach_task": ("moves of tasks between cgroups", "they are not reported"),
    },
    SCAN_TOPIC: {
        SCAN: (
            "usage of all cgroups in one pass",
            "one file read per cgroup instead: about ten times the cost",
        ),
    },
}


def object_path(name: str) -> Path:
    """Return the path of `<name>.bpf.o`.

    Raises:  SupportError: it was not built.
    """
    for folder in (_PACKAGED, _CHECKOUT):
        path = folder / f"{name}.bpf.o"
        if path.exists():
            return path
    raise SupportError(f"BPF object {name}", f"not found in {_PACKAGED} nor {_CHECKOUT}", "Build it: make bpf.")


def source_folder() -> Path:
    """Return the folder of the programs' C sources, `*.bpf.c` and `include/`, for who compiles on the node.

    Raises:  SupportError: the package was built without them.
    """
    for folder in (_PACKAGED_SOURCES, _CHECKOUT.parent):
        if (folder / "include" / "koord_bcc.h").exists():
            return folder
    raise SupportError(
        "BPF sources", f"not found in {_PACKAGED_SOURCES} nor {_CHECKOUT.parent}", "Install koordebpf from its wheel."
    )


def partner_of(program: str) -> str:
    """Return the program that ends what `program` begins; itself where there is none."""
    for first, last in (("_begin", "_end"), ("_enter", "_leave"), ("_wake", "_sleep"), ("mkdir", "rmdir")):
        program = program.replace(first, last)
    return program


def describe(topic: str, how: Mapping[str, str], failures: Mapping[str, OSError]) -> Iterator[SignalSource]:
    """Yield a source for each signal of a topic: how its program is attached, or why it is not.

    `how` and `failures` are by program; one that ends what another begins fails with it. Where `how` says nothing the
    program's raw tracepoint is meant.
    """
    for program, (signal, cost) in SIGNALS[topic].items():
        error = failures.get(program) or failures.get(partner_of(program))
        way = how.get(program, f"raw tracepoint {program.removeprefix('on_')}")
        if error is None:
            yield SignalSource(signal, way, works=True)
        else:
            reason, remedy = explain_refusal(error)
            yield SignalSource(signal, way, works=False, reason=reason, remedy=remedy, cost=cost)
