"""How the eviction of pods relieves a shortage of one resource: all that a feature does not say itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from koordebpf.policy.credit import EMPTY_BYTES, candidate_credit, credit_bytes
from koordebpf.policy.evict.pending import is_cooling, is_cooling_cpu, is_starting_cpu, stray_bytes
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.plan import Candidate, Holding
from koordebpf.state.amount import BE_REQUESTED_CPU, CPU, MEMORY, Dimension, Resource, unit_of
from koordebpf.state.measured import StrayMeasure, is_mostly_kernel
from koordebpf.state.view import NodeView, PodView
from koordebpf.units import format_bytes, format_ns


def credit_text(candidate: Candidate, dimensions: Iterable[Dimension]) -> str:
    """Return what the eviction of a candidate releases of what is short, for people."""
    credits = [(each, candidate_credit(candidate, each)) for each in dimensions]
    return " and ".join(unit_of(each.resource).format(amount) for each, amount in credits if amount)


def _never(view: NodeView, settings: EvictSettings) -> str | None:
    return None


class Relief(msgspec.Struct, frozen=True):
    """How the eviction of pods relieves a shortage of one resource.

    `holding`       what a pod takes of it; the flag asks for Koordinator's amounts.
    `credit`        what a pod that leaves already will still release.
    `is_measured`   whether anything of it is known of this node.
    `why_waiting`   why nothing more is evicted for it yet; None: it may be.
    `stray_credit`  what a cgroup without a pod will release; None: it is not known of such cgroups.
    `gives`         what a victim releases, for people.
    `counts_killed` a pod without processes takes nothing of it, so that one that was killed counts as evicted.
    """

    resource: Resource
    holding: Callable[[PodView, bool], Holding]
    credit: Callable[[PodView, Dimension], int]
    is_measured: Callable[[NodeView], bool] = lambda view: True
    why_waiting: Callable[[NodeView, EvictSettings], str | None] = _never
    stray_credit: Callable[[StrayMeasure], int] | None = None
    gives: Callable[[Candidate, Iterable[Dimension]], str] = credit_text
    counts_killed: bool = False


def _memory_of(pod: PodView, as_koordinator: bool) -> Holding:
    memory, terms = pod.memory, pod.terms
    if memory is None:
        return Holding(MEMORY, None, 0, terms.memory_resource, terms.memory_request_bytes)
    held = memory.koordinator_used_bytes if as_koordinator else memory.held_bytes
    # The credit in two words where it is what it holds: this runs for every pod of every feature that fires.
    released = held if as_koordinator or (held >= EMPTY_BYTES and not pod.keeps_tmpfs) else credit_bytes(pod)
    return Holding(MEMORY, held, released, terms.memory_resource, terms.memory_request_bytes)


def _memory_credit(pod: PodView, dimension: Dimension) -> int:
    if dimension.is_use:
        return credit_bytes(pod)
    return pod.terms.memory_request_bytes if pod.terms.memory_resource == dimension.name else 0


def _why_memory_waits(view: NodeView, settings: EvictSettings) -> str | None:
    if not is_cooling(view, settings):
        return None
    if settings.strict_compat:
        return f"the last eviction was less than {format_ns(settings.cool_time_ns)} ago"
    return "what was evicted last has not released its memory yet"


# Whatever it is evicted for: its memory in use, and how much of that the kernel holds where that is the most.
def _memory_text(candidate: Candidate, _: Iterable[Dimension]) -> str:
    released = candidate.of(MEMORY).released
    if not is_mostly_kernel(candidate.kernel_bytes, released):
        return format_bytes(released)
    return f"{format_bytes(released)}, {format_bytes(candidate.kernel_bytes or 0)} of it kernel memory"


def _cpu_of(pod: PodView, _: bool) -> Holding:
    terms, used = pod.terms, pod.cpu_used_millicpu
    batch = {BE_REQUESTED_CPU.name: terms.batch_cpu_millicpu}
    return Holding(CPU, used, used or 0, terms.cpu_resource, terms.cpu_request_millicpu, batch)


def _cpu_credit(pod: PodView, dimension: Dimension) -> int:
    if dimension.is_use:
        return pod.cpu_used_millicpu or 0
    if dimension == BE_REQUESTED_CPU:
        return pod.terms.batch_cpu_millicpu if pod.koord_qos == "BE" else 0
    return pod.terms.cpu_request_millicpu if pod.terms.cpu_resource == dimension.name else 0


def _why_cpu_waits(view: NodeView, settings: EvictSettings) -> str | None:
    if is_starting_cpu(view, settings):
        return f"the agent started less than {format_ns(settings.cpu_cool_time_ns)} ago"
    if is_cooling_cpu(view, settings):
        return f"the last eviction was less than {format_ns(settings.cpu_cool_time_ns)} ago"
    return None


MEMORY_RELIEF = Relief(
    MEMORY,
    _memory_of,
    _memory_credit,
    why_waiting=_why_memory_waits,
    stray_credit=stray_bytes,
    gives=_memory_text,
)
CPU_RELIEF = Relief(
    CPU,
    _cpu_of,
    _cpu_credit,
    is_measured=lambda view: view.cpu is not None,
    why_waiting=_why_cpu_waits,
    counts_killed=True,
)
