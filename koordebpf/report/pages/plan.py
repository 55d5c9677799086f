"""A plan for people: each feature's need, the victims with their rank, and why not the others. 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from koordebpf.policy.credit import amount_text
from koordebpf.policy.detect import be_memory_evict
from koordebpf.policy.detect.verdict import BE_REQUESTED_CPU, USED, USED_CPU, CpuEvidence, CpuMoment, StallEvidence
from koordebpf.policy.evict.candidates.disruption import ALLOWED
from koordebpf.policy.ladder_settings import Rung
from koordebpf.policy.node_plan import NodePlan
from koordebpf.policy.plan import Candidate, FeaturePlan, Plan
from koordebpf.printable import page, printable
from koordebpf.report.pages.amounts import amounts_of
from koordebpf.report.pages.columns import WIDTH, filled, table_lines
from koordebpf.report.pages.suppression import suppression_blocks
from koordebpf.state.view import is_mostly_kernel
from koordebpf.units import format_bytes, format_millicpu, format_ns

_NAMED = 4  # namespaces in a sentence
_Column = tuple[str, Callable[[Candidate], str]]


def plan_page(plan: NodePlan, ranking: int, *, with_ladder: bool = False) -> str:
    """Return the sentence, then for each feature its numbers, the first `ranking` candidates, and who is none.

    The ladder follows where more than an eviction is configured, or with `with_ladder`; suppression stands at the end.
    """
    blocks = [[*textwrap.wrap(printable(plan.sentence), WIDTH)]]
    for feature in plan.features:
        blocks += [_numbers(feature, plan.sentence), _ranking(feature, ranking), _not_done(feature)]
    net = plan.stall_net
    if all(feature.verdict.feature != net.feature for feature in plan.features):
        blocks.append(_numbers(FeaturePlan(net), net.reason))  # its gate is off: `skipped` says so
    if with_ladder or any(each.is_on and each.rung is not Rung.EVICT for each in plan.ladder):
        blocks.append(_ladder(plan))
    if plan.undecided_namespaces:
        blocks.append(_undecided(plan.undecided_namespaces))
    blocks += suppression_blocks(plan.suppression)
    return "\n\n".join(page(block) for block in blocks if block)


def _numbers(feature: FeaturePlan, said: str) -> list[str]:
    verdict, evidence, cpu = feature.verdict, feature.verdict.evidence, feature.verdict.cpu
    lines = [verdict.feature if verdict.skipped is None else f"{verdict.feature}: skipped ({verdict.skipped})"]
    if not verdict.fires and evidence is None and cpu is None and verdict.reason not in said:
        lines += filled(verdict.reason, "  ")
    if verdict.stall is not None:
        lines += _stalls(verdict.stall)
    if evidence is not None:
        lines.append(_row("capacity", evidence.capacity_bytes))
        lines.append(_row("used", evidence.used_bytes, f"{evidence.used_percent} %"))
        if evidence.threshold_bytes is not None:
            lines.append(_row("threshold", evidence.threshold_bytes, f"{evidence.threshold_percent} %"))
        if evidence.lower_bytes is not None:
            lines.append(_row("lower", evidence.lower_bytes, f"{evidence.lower_percent} %"))
    if cpu is not None:
        lines += _averages(cpu)
    for need in verdict.needs:
        if need.resource != USED:
            lines += _requested(need.resource, need.need_bytes, need.now_bytes, need.of_bytes)
    for of_cpu in verdict.cpu_needs:
        if of_cpu.resource not in (USED_CPU, BE_REQUESTED_CPU):
            lines += _requested(of_cpu.resource, of_cpu.need_millicpu, of_cpu.now_millicpu, of_cpu.of_millicpu)
    return lines + (_round(feature, said) if verdict.fires else [])


def _round(feature: FeaturePlan, said: str) -> list[str]:
    sums = amounts_of(feature)
    other = feature.verdict.koordinator_need_bytes
    note = f"Koordinator: {format_bytes(other)}" if feature.cpu is None and other != feature.need_bytes else ""
    if feature.verdict.stall is not None:
        note = "at most, for the rung reclaim"
    lines = [_said("need", sums.text(sums.need), note), _said("coming back", sums.text(sums.pending))]
    if sums.shared:
        lines.append(_said("from others", sums.text(sums.shared), "victims of the features before"))
    lines.append(_said("credit", sums.text(sums.credit), _victims(len(feature.victims))))
    if sums.missing:
        lines.append(_said("missing", sums.text(sums.missing)))
    if (not feature.victims or sums.missing) and feature.reason not in said:
        lines += filled(feature.reason, "  ")
    return lines


def _stalls(stall: StallEvidence) -> list[str]:
    partly = "" if stall.is_whole else "; of direct reclaim and compaction alone"
    lines = [_said("stalled", f"{100 * stall.ratio:.1f} %", f"{stall.pod or 'no pod for certain'}{partly}")]
    if stall.at_most_ratio > stall.ratio:
        lines.append(_said("at most", f"{100 * stall.at_most_ratio:.1f} %", stall.at_most_pod))
    lines.append(_said("threshold", f"{100 * stall.threshold_ratio:.0f} %"))
    above = "-" if stall.above_s is None else f"{int(stall.above_s)} s"
    return [*lines, _said("above for", above, f"of {stall.wanted_s} s")]


# As those of memory; what best-effort pods may have stands in the place of the capacity, and its marks after what they
# ask for, since they are shares of that.
def _averages(cpu: CpuEvidence) -> list[str]:
    window = f"average of {format_ns(cpu.window_ns)}"
    used = window if cpu.used_percent is None else f"{cpu.used_percent} %, {window}"
    request, upper = cpu.request_millicpu, cpu.upper_millicpu
    lines = [
        _cores("capacity" if request is None else "may have", cpu.of_millicpu),
        _cores("used", cpu.used_millicpu, used),
    ]
    if (now := cpu.now) is not None and now != CpuMoment(cpu.used_millicpu, cpu.of_millicpu, request):
        asked = "" if now.request_millicpu is None else f", {format_millicpu(now.request_millicpu)} requested"
        lines.append(_cores("used now", now.used_millicpu, f"of {format_millicpu(now.of_millicpu)}{asked}"))
    lines.append(_cores("threshold", cpu.threshold_millicpu, f"{cpu.threshold_percent} %"))
    if request is not None:
        got = f", satisfied to {cpu.of_millicpu * 100 // request} %" if request else ""
        lines.append(_cores("requested", request, f"{window}{got}"))
    lines.append(_cores("lower", cpu.lower_millicpu, f"{cpu.lower_percent} %"))
    return lines if upper is None else [*lines, _cores("upper", upper, f"{cpu.upper_percent} %")]


def _cores(name: str, millicpu: int, note: str = "") -> str:
    return _said(name, format_millicpu(millicpu), note)


def _requested(resource: str, need: int, now: int, of: int) -> list[str]:
    return [
        f"  of {resource}",
        _said("requested", amount_text(resource, now), f"{now * 100 // of} % of what is allocatable" if of > 0 else ""),
        _said("allocatable", amount_text(resource, of)),
        _said("too much", amount_text(resource, need)),
    ]


def _row(name: str, size_bytes: int, note: str = "") -> str:
    return _said(name, format_bytes(size_bytes), note)


def _said(name: str, amount: str, note: str = "") -> str:
    return f"  {name:<12}{amount:>9}  {note}".rstrip()


def _ranking(feature: FeaturePlan, count: int) -> list[str]:
    shown = feature.candidates[:count]
    if not shown:
        return []
    going = {victim.candidate.uid for victim in feature.victims}
    columns = _columns(feature, shown)
    rows = [
        [f"{'*' if each.uid in going else ' '}{each.rank:>3}", *(cell(each) for _, cell in columns)] for each in shown
    ]
    lines = table_lines(["rank", *(heading for heading, _ in columns)], rows, left=1)
    notes = ["* evicted"] if going else []
    if len(feature.candidates) > count:
        notes.append(f"{len(feature.candidates) - count} more candidates")
    if any(each.caused_ns for each in shown):
        notes.append("caused: stalls of latency-sensitive pods on its account")
    if any(heading == "kernel" for heading, _ in columns):
        notes.append("kernel: what the kernel holds for it (sockets, pipes, page tables, slab)")
    lines += filled("; ".join(notes))
    for each in shown:
        if each.disruption not in (None, ALLOWED):
            lines += filled(f"rank {each.rank}: {each.disruption}", "  ")
    rank_of = {each.uid: each.rank for each in shown}
    for found in feature.not_honoured:
        if found.uid in rank_of:
            lines += filled(f"rank {rank_of[found.uid]}: {found.why}", "  ")
    for victim in feature.victims:
        if victim.grace_s is not None and victim.candidate.rank <= len(shown):
            lines += filled(f"rank {victim.candidate.rank}: its grace period is cut to {victim.grace_s} s", "  ")
    for workload, ranks in _shared(shown).items():
        lines += filled(f"ranks {', '.join(map(str, ranks))} are of {workload}", "  ")
    return lines


def _shared(shown: Sequence[Candidate]) -> dict[str, list[int]]:
    ranks: dict[str, list[int]] = {}
    for each in shown:
        if each.workload is not None:
            ranks.setdefault(each.workload, []).append(each.rank)
    return {workload: found for workload, found in ranks.items() if len(found) > 1}


# What every ranking shows, and of the rest where these candidates differ.
def _columns(feature: FeaturePlan, shown: Sequence[Candidate]) -> list[_Column]:
    columns: list[_Column] = [("pod", lambda each: f"{each.namespace}/{each.name}")]
    by_priority = feature.verdict.feature != be_memory_evict.FEATURE
    if by_priority and any(each.own_priority for each in shown):
        columns.append(("own", lambda each: str(each.own_priority)))
    columns.append(("priority", lambda each: "-" if each.priority is None else str(each.priority)))
    if by_priority and any(each.sub_priority not in (None, each.priority) for each in shown):
        columns.append(("sub", lambda each: "-" if each.sub_priority is None else str(each.sub_priority)))
    if feature.verdict.cpu_needs:
        resources = {need.resource for need in feature.verdict.cpu_needs}
        columns.append(("used", _used_cpu))
        if USED_CPU in resources:
            return [*columns, ("credit", _used_cpu)]
        is_best_effort = BE_REQUESTED_CPU in resources  # batch-cpu counts then, whatever the band of the pod
        return [*columns, *((("asks", _batch_cpu), ("share", _share_used)) if is_best_effort else _ASKED_CPU)]
    columns.append(("used", lambda each: "-" if each.used_bytes is None else format_bytes(each.used_bytes)))
    if any(need.resource != USED for need in feature.verdict.needs):
        columns.append(("asks", lambda each: format_bytes(each.request_bytes)))
        columns.append(("of", lambda each: each.request_resource.removeprefix("kubernetes.io/")))
        return columns
    columns.append(("credit", lambda each: format_bytes(each.credit_bytes)))
    columns.append(("growth/s", _growth))
    if any(each.caused_ns for each in shown):
        columns.append(("caused", lambda each: format_ns(each.caused_ns) if each.caused_ns else "-"))
    if any(is_mostly_kernel(each.kernel_bytes, each.credit_bytes) for each in shown):
        columns.append(("kernel", _kernel))
    if any(each.credit_bytes - (each.kernel_bytes or 0) != each.koordinator_credit_bytes for each in shown):
        columns.append(("Koordinator", lambda each: format_bytes(each.koordinator_credit_bytes)))
    return columns


def _kernel(each: Candidate) -> str:
    return "-" if each.kernel_bytes is None else format_bytes(each.kernel_bytes)


def _used_cpu(each: Candidate) -> str:
    used = each.cpu.used_millicpu if each.cpu else None
    return "-" if used is None else format_millicpu(used)


def _asked_cpu(each: Candidate) -> str:
    return format_millicpu(each.cpu.request_millicpu) if each.cpu else "-"


def _asked_of(each: Candidate) -> str:
    return each.cpu.request_resource.removeprefix("kubernetes.io/") if each.cpu else "-"


_ASKED_CPU: tuple[_Column, ...] = (("asks", _asked_cpu), ("of", _asked_of))


def _batch_cpu(each: Candidate) -> str:
    return format_millicpu(each.cpu.batch_millicpu) if each.cpu else "-"


# Of what it asks for: by that they are ranked.
def _share_used(each: Candidate) -> str:
    if each.cpu is None or each.cpu.used_millicpu is None or not each.cpu.batch_millicpu:
        return "-"
    return f"{each.cpu.used_millicpu * 100 // each.cpu.batch_millicpu} %"


def _growth(each: Candidate) -> str:
    return "-" if each.growth_bytes_per_s is None else format_bytes(int(each.growth_bytes_per_s))


def _not_done(feature: FeaturePlan) -> list[str]:
    if not feature.excluded:
        return []
    lines = ["no candidates:"]
    for pod in feature.excluded:
        lines += filled(f"{pod.namespace}/{pod.name}: {pod.why}", "  ")
    return lines


def _undecided(namespaces: Sequence[str]) -> list[str]:
    more = f" and {len(namespaces) - _NAMED} more" if len(namespaces) > _NAMED else ""
    names = ", ".join(namespaces[:_NAMED])
    return filled(f"every exemption counts in {names}{more}: the labels of these namespaces are not known")


def _ladder(plan: Plan) -> list[str]:
    lines = ["ladder, what each rung would do about the victims (* is used):"]
    for each in plan.ladder:
        undo = f"; undone by: {each.undo}" if each.undo else ""
        lines += filled(f"{'*' if each.is_on else ' '} {each.rung.value:<8} {each.text}{undo}", "  ")
    return lines if plan.ladder else [*lines, "  no victim"]


def _victims(count: int) -> str:
    return "" if count == 0 else "1 victim" if count == 1 else f"{count} victims"
