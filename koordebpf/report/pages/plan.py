"""A plan for people: needs, the victims with their rank, why not the others; the ledger; the other strategies.

80 columns.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

from msgspec import UNSET
from msgspec.structs import replace

from koordebpf.decision.dead_man import PlannedDeadMan
from koordebpf.decision.node_plan import NodePlan, OtherDecision
from koordebpf.decision.strategies import STRATEGY_OF
from koordebpf.kernel.cgroup.files import Version, file_name, format_value
from koordebpf.policy.credit import candidate_credit
from koordebpf.policy.detect import be_memory_evict
from koordebpf.policy.detect.verdict import Need, StallEvidence, UseEvidence, UseMoment, Verdict
from koordebpf.policy.evict.disruption import ALLOWED
from koordebpf.policy.ladder_settings import Rung
from koordebpf.policy.plan import Balance, Candidate, FeaturePlan, Plan, PodAction, Victim
from koordebpf.printable import page, printable
from koordebpf.report.pages.columns import WIDTH, filled, filled_paths, table_lines
from koordebpf.report.record_line import shortened
from koordebpf.report.sentences import headline, plain_words
from koordebpf.state.amount import BE_REQUESTED_CPU, CPU, MEMORY, USED, Resource, unit_of
from koordebpf.state.balance import UNEXPLAINED, MemoryBalance
from koordebpf.state.measured import LedgerRow, LedgerView, Party, is_mostly_kernel
from koordebpf.state.view import KillerName
from koordebpf.store.audit_record import asked_reasons
from koordebpf.units import NS_PER_S, format_bytes, format_millicpu, format_ns

_DEAD_MAN = "dead man's switch"
_PARTY = 26
_LEAST_SHARE = 10_000  # what shows as 0.1 ms/s; less than that is summed up
LEDGER_HEADER = f"{'STALLED':<{_PARTY}} ← {'ON ACCOUNT OF':<{_PARTY}} {'ms/s':>8} {'SINCE':>9}"
# Of what a strategy does to pods: a column stands where one of them has it.
_ACTIONS: tuple[tuple[str, Callable[[PodAction], str]], ...] = (
    ("taken", lambda each: "" if each.reclaim_bytes is None else format_bytes(each.reclaim_bytes)),
    ("group", lambda each: each.resctrl_group or ""),
    ("tasks", lambda each: "" if each.tasks is None else str(each.tasks)),
)
_NOT_DUE = "this round measured nothing for it; what it wrote before stays"
_MOST_FILES, _MOST_PODS = 20, 10  # of one strategy; pods in a comparison
_NAME, _CELL = 24, 12  # of a comparison, as those of the features
_NAMED = 4  # namespaces in a sentence
_OUTSIDE = 3  # cgroups outside pods that are named
_PART_NAMES = {"outside": "outside pods"}
_KILLERS: Mapping[KillerName, str] = {
    "api": "an Eviction is created",
    "delete": "its Pod is deleted, past PodDisruptionBudgets",
    "cri": "its containers are stopped, past PodDisruptionBudgets",
    "cgroup": "its processes are killed, past PodDisruptionBudgets",
}
_Column = tuple[str, Callable[[Candidate], str]]


def dead_man_lines(planned: PlannedDeadMan) -> list[str]:
    """Return what the switch would do after this round, without the ranking."""
    return [f"{_DEAD_MAN} (deadMan.action: {planned.settings.action})", *filled(_switch(planned), "  ")]


def dead_man_ranking(planned: PlannedDeadMan) -> FeaturePlan | None:
    """Return what its victim was chosen from, as of a feature; None: there is no victim.

    A kill has no grace period and asks no API: how the pod would be evicted is left out.
    """
    choice = planned.choice
    if choice.victim is None:
        return None
    victim = replace(choice.victim, killer=None, grace_s=None)
    return FeaturePlan(Verdict(choice.feature, False, ""), Balance(MEMORY), (victim,), choice.ranking)


def dead_man_diff(before: PlannedDeadMan | None, after: PlannedDeadMan | None) -> list[str]:
    """Return what is different about the second; nothing where both are the same."""
    if before == after:
        return []
    both = before, after
    first, last = ["deadMan.action is nothing" if each is None else _switch(each) for each in both]
    return [_DEAD_MAN, *filled(f"before: {first}", "  "), *filled(f"after:  {last}", "  ")]


def _switch(planned: PlannedDeadMan) -> str:
    settings, choice = planned.settings, planned.choice
    if choice.victim is None:
        return f"is not armed: {plain_words(choice.reason)}"
    does = "kills" if settings.action == "kill" else "counts that it would kill"
    return (
        f"{does} {choice.reason} when the agent does not run for {format_ns(settings.after_ns)}, tasks stall"
        f" {format_ns(settings.stall_ns)} of it for memory and more than {format_bytes(choice.threshold_bytes)} of"
        f" {format_bytes(choice.capacity_bytes)} are in use: {choice.feature} would evict it first if the memory were"
        " full"
    )


def ledger_lines(ledger: LedgerView, most: int = 20) -> list[str]:
    """Return the rows under their heading, the largest first; what does not fit is summed up in one.

    ms/s is over the ledger's window: two tasks that wait all the time are 2000.
    """
    lines = [LEDGER_HEADER]
    if not ledger.rows:
        return [*lines, f"no pod, in {format_ns(ledger.window_ns)}"]
    shown = [row for row in ledger.rows[:most] if row.ns * _LEAST_SHARE >= ledger.window_ns]
    lines += [ledger_line(row, ledger.window_ns) for row in shown]
    if rest := ledger.rows[len(shown) :]:
        rest_ns = sum(row.ns for row in rest)
        lines.append(f"{f'{len(rest)} more':<{2 * _PARTY + 3}} {_rate(rest_ns, ledger.window_ns):>8}")
    return lines


def ledger_line(row: LedgerRow, window_ns: int) -> str:
    """Return one row; SINCE is how long before its last stall the uninterrupted charge began."""
    names = f"{party_text(row.victim, _PARTY):<{_PARTY}} ← {party_text(row.cause, _PARTY):<{_PARTY}}"
    return f"{names} {_rate(row.ns, window_ns):>8} {format_ns(row.last_ns - row.since_ns):>9}"


def party_text(party: Party, columns: int) -> str:
    """Return who it is in so many columns."""
    match party.kind:
        case "own limit":
            return "its own limit"
        case "unattributed":
            return "no pod seen to grow"
        case "others":
            return "others"
    return shortened(party.label, columns)


def _rate(ns: int, window_ns: int) -> str:
    return f"{ns * 1000 / window_ns:.1f}" if window_ns else f"{ns / NS_PER_S:.1f}"


def decision_blocks(name: str, decision: OtherDecision, count: int) -> list[list[str]]:
    """Return a strategy's part of a plan, with `count` pods at most: its own, or the lines that every one has."""
    if decision.explained is not UNSET:
        return [[line for each in block for line in _wrapped(each)] for block in decision.explained.blocks()]
    lines = [name if decision.skipped is None else f"{name}: skipped ({decision.skipped})", *_reason(decision, "  ")]
    lines += _acted_on(decision, count)
    lines += _file_lines([f"{file} → {value}" for file, value in _files(decision).items()])
    for condition in decision.conditions:
        lines += filled(f"the node is to be marked: {condition}", "  ")
    return [lines]


def _wrapped(line: str) -> list[str]:
    text = line.lstrip(" ")
    return [line] if len(line) <= WIDTH else filled(text, line.removesuffix(text))


def decisions_diff(before: Mapping[str, OtherDecision], after: Mapping[str, OtherDecision]) -> list[list[str]]:
    """Return a block for each strategy that decides otherwise after; its files with + only after, - only before."""
    names = dict.fromkeys((*before, *after))
    return [_diff(name, before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)]


def _diff(name: str, before: OtherDecision | None, after: OtherDecision | None) -> list[str]:
    if before is not None and after is not None and UNSET not in (before.explained, after.explained):
        return _cells_diff(name, before, after)
    lines = [name]
    for when, decision in (("before: ", before), ("after:  ", after)):
        if decision is None:
            lines.append(f"  {when}its feature gate is off")
        else:
            first, *more = _reason(decision, f"  {when}")
            lines += [first, *more]
    was, is_now = (_files(each) if each is not None else {} for each in (before, after))
    changes = [f"+ {file} → {value}" for file, value in is_now.items() if file not in was]
    changes += [f"- {file} → {value}" for file, value in was.items() if file not in is_now]
    changes += [f"~ {file}: {was[file]} → {value}" for file, value in is_now.items() if was.get(file, value) != value]
    lines += _file_lines(changes)
    return lines if after is None else lines + _acted_on(after, _MOST_PODS)


def _cells_diff(name: str, before: OtherDecision, after: OtherDecision) -> list[str]:
    lines = [f"{STRATEGY_OF[name].gate:<{_NAME + 2}}{'before':>{_CELL}}{'after':>{_CELL}}"]
    is_now = after.explained.cells()
    for cell, first in before.explained.cells().items():
        if first != is_now[cell]:
            lines.append(f"  {cell:<{_NAME}}{first:>{_CELL}}{is_now[cell]:>{_CELL}}")
    if before.reason != after.reason:
        lines += filled(f"before: {before.reason}", "  ")
        lines += filled(f"after:  {after.reason}", "  ")
    return lines


def _file_lines(files: list[str]) -> list[str]:
    lines = [line for each in files[:_MOST_FILES] for line in filled_paths(each, "  ")]
    more = len(files) - _MOST_FILES
    return [*lines, f"  {more} more file{'s' if more > 1 else ''}: --json has all"] if more > 0 else lines


def _reason(decision: OtherDecision, indent: str) -> list[str]:
    lines = filled(f"{indent.lstrip()}{plain_words(decision.reason)}", "  ")
    if decision.skipped == "not_due":
        lines += filled(_NOT_DUE, "  ")
    return [line for text in (lines, *(filled(each, "  ") for each in decision.problems)) for line in text]


def _files(decision: OtherDecision) -> dict[str, str]:
    # A frame does not say which cgroup version its node has. A file that v1 does not have does.
    version: Version = 2 if any(file_name(each.file, 1) is None for each in decision.writes) else 1
    texts: dict[str, list[str]] = {}
    for each in decision.writes:
        # As it is written into the file, of which v2 has one for what v1 has several.
        name = f"{each.path}/{file_name(each.file, version) or each.file.value}"
        texts.setdefault(name, []).append(format_value(each.file, version, each.value).strip().replace("\n", ", "))
    of_cgroups = {name: ", ".join(filter(None, each)) or "nothing" for name, each in texts.items()}
    return of_cgroups | {f"{each.name}": str(each.value) for each in decision.sysctls}


# Pods that something is done to beside cgroup files: what is taken from each, or the group that gets its tasks.
def _acted_on(decision: OtherDecision, count: int) -> list[str]:
    shown, more = decision.pods[:count], max(len(decision.pods) - count, 0) + decision.more_pods
    columns = [(heading, cell) for heading, cell in _ACTIONS if any(cell(each) for each in shown)]
    rows = [[f"  {each.namespace}/{each.name}", *(cell(each) or "-" for _, cell in columns)] for each in shown]
    lines = table_lines(["  pod", *(heading for heading, _ in columns)], rows, left=0) if shown else []
    if any(each.tasks is not None for each in shown):
        lines.append("  tasks: threads that are not in the group yet")
    if any(each.swappiness == 0 for each in shown):
        lines.append("  page cache alone is taken: nothing is to be swapped out")
    return [*lines, f"  {more} more pod{'s' if more > 1 else ''}"] if more else lines


def balance_lines(balance: MemoryBalance) -> list[str]:
    """Return the parts of what is in use, each with its share of the node's memory, and the largest cgroups outside."""
    outside = [each for each in balance.outside if each.held_bytes]
    named = ", ".join(f"{each.path or '/'} {format_bytes(each.held_bytes)}" for each in outside[:_OUTSIDE])
    notes = {"outside": named, UNEXPLAINED: "in no pod, cgroup or counter of the kernel"}
    lines: list[str] = []
    for name, held in balance.parts().items():
        percent = held * 100 / balance.total_bytes if balance.total_bytes else 0.0
        line = f"{_PART_NAMES.get(name, name):<13}{format_bytes(held):>10}{percent:>6.1f} %"
        first, *more = filled(notes.get(name, ""), " " * (len(line) + 2)) or [""]
        lines += [f"{line}  {first.strip()}".rstrip(), *more]
    return lines


def plan_page(plan: NodePlan, ranking: int, *, with_ladder: bool = False) -> str:
    """Return the sentence, then for each feature its numbers, the first `ranking` candidates, and who is none.

    The ladder follows where more than an eviction is configured, or with `with_ladder`; other strategies
    and the dead man's switch stand at the end.
    """
    blocks = [[*textwrap.wrap(printable(headline(plan)), WIDTH)]]
    if plan.guards:
        blocks.append(
            ["held back by closed guards", *chain.from_iterable(filled(g.sentence, "  ") for g in plan.guards)]
        )
    for feature in plan.features:
        blocks += [_numbers(feature, plan.sentence), _ranking(feature, ranking), _not_done(feature)]
    if plan.memory is not None:
        blocks.append(["memory in use", *(f"  {line}" for line in balance_lines(plan.memory))])
    net = plan.stall_net
    if all(feature.verdict.feature != net.feature for feature in plan.features):
        blocks.append(_numbers(FeaturePlan(net, Balance(MEMORY)), net.reason))  # its gate is off: `skipped` says so
    if with_ladder or any(each.is_on and each.rung is not Rung.EVICT for each in plan.ladder):
        blocks.append(_ladder(plan))
    if plan.undecided_namespaces:
        blocks.append(_undecided(plan.undecided_namespaces))
    for name, each in plan.strategies.items():
        blocks += decision_blocks(name, each, ranking)
    if plan.dead_man is not None:
        ranked = dead_man_ranking(plan.dead_man)
        blocks += [dead_man_lines(plan.dead_man), [] if ranked is None else _ranking(ranked, ranking, "chosen")]
    return "\n\n".join(page(block) for block in blocks if block)


def _numbers(feature: FeaturePlan, said: str) -> list[str]:
    verdict, evidence = feature.verdict, feature.verdict.evidence
    lines = [verdict.feature if verdict.skipped is None else f"{verdict.feature}: skipped ({verdict.skipped})"]
    if not verdict.fires and evidence is None and verdict.reason not in said:
        lines += filled(plain_words(verdict.reason), "  ")
    if verdict.stall is not None:
        lines += _stalls(verdict.stall)
    if evidence is not None:
        lines += _use(evidence)
    else:
        for need in verdict.needs:
            if not need.dimension.is_use:
                lines += _requested(need)
    return lines + (_round(feature, said) if verdict.fires else [])


def _round(feature: FeaturePlan, said: str) -> list[str]:
    sums = feature.balance
    other = feature.verdict.koordinator_need
    note = f"Koordinator: {sums.text(other)}" if other is not None and other != sums.need else ""
    if feature.verdict.stall is not None:
        note = "at most, for the rung reclaim"
    if feature.verdict.is_by_name:
        return [
            _said("asked for", sums.text(sums.need)),
            _said("evicted", sums.text(sums.credit)),
            *_why_none(feature, said),
        ]
    lines = [_said("need", sums.text(sums.need), note), _said("coming back", sums.text(sums.pending))]
    if sums.shared:
        lines.append(_said("from others", sums.text(sums.shared), "victims of the features before"))
    lines.append(_said("credit", sums.text(sums.credit), _victims(len(feature.victims))))
    if sums.missing:
        lines.append(_said("missing", sums.text(sums.missing)))
    return [*lines, *_why_none(feature, said)]


def _why_none(feature: FeaturePlan, said: str) -> list[str]:
    if (not feature.victims or feature.balance.missing) and feature.reason not in said:
        return filled(feature.reason, "  ")
    return []


def _stalls(stall: StallEvidence) -> list[str]:
    partly = "" if stall.is_whole else "; of direct reclaim and compaction alone"
    lines = _said_long("stalled", f"{100 * stall.ratio:.1f} %", f"{stall.pod or 'no pod for certain'}{partly}")
    if stall.at_most_ratio > stall.ratio:
        lines += _said_long("at most", f"{100 * stall.at_most_ratio:.1f} %", stall.at_most_pod)
    lines.append(_said("threshold", f"{100 * stall.threshold_ratio:.0f} %"))
    above = "-" if stall.above_s is None else f"{int(stall.above_s)} s"
    return [*lines, _said("above for", above, f"of {stall.wanted_s} s")]


# What best-effort pods may have stands in the place of the capacity, and its marks after what they ask for, since they
# are shares of that.
def _use(use: UseEvidence) -> list[str]:
    text = unit_of(use.resource).format
    window = f"average of {format_ns(use.window_ns)}" if use.window_ns is not None else ""
    percent = "" if use.used_percent is None else f"{use.used_percent} %"
    lines = [
        _said("capacity" if use.request is None else "may have", text(use.of)),
        _said("used", text(use.used), ", ".join(filter(None, [percent, window]))),
    ]
    if (now := use.now) is not None and now != UseMoment(use.used, use.of, use.request):
        asked = "" if now.request is None else f", {text(now.request)} requested"
        lines.append(_said("used now", text(now.used), f"of {text(now.of)}{asked}"))
    if use.threshold is not None:
        lines.append(_said("threshold", text(use.threshold), f"{use.threshold_percent} %"))
    if use.request is not None:
        got = f", satisfied to {use.of * 100 // use.request} %" if use.request else ""
        lines.append(_said("requested", text(use.request), f"{window}{got}"))
    if use.lower is not None:
        lines.append(_said("lower", text(use.lower), f"{use.lower_percent} %"))
    return lines if use.upper is None else [*lines, _said("upper", text(use.upper), f"{use.upper_percent} %")]


def _requested(need: Need) -> list[str]:
    text, of = unit_of(need.dimension.resource).format, need.of
    return [
        f"  of {need.dimension.name}",
        _said("requested", text(need.now), f"{need.now * 100 // of} % of what is allocatable" if of > 0 else ""),
        _said("allocatable", text(of)),
        _said("too much", text(need.need)),
    ]


def _said(name: str, amount: str, note: str = "") -> str:
    return f"  {name:<12}{amount:>9}  {note}".rstrip()


def _said_long(name: str, amount: str, note: str) -> list[str]:
    return textwrap.wrap(_said(name, amount, note), WIDTH, subsequent_indent=" " * 25, break_on_hyphens=False)


def _ranking(feature: FeaturePlan, count: int, fate: str = "evicted") -> list[str]:
    shown = feature.candidates[:count]
    if not shown:
        return []
    going = {victim.candidate.uid for victim in feature.victims}
    columns = _columns(feature, shown)
    rows = [
        [f"{'*' if each.uid in going else ' '}{each.rank:>3}", *(cell(each) for _, cell in columns)] for each in shown
    ]
    lines = table_lines(["rank", *(heading for heading, _ in columns)], rows, left=1)
    notes = [f"* {fate}"] if going else []
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
    asked = asked_reasons(feature)
    for victim in feature.victims:
        rank, why = victim.candidate.rank, asked.get(victim.candidate.uid)
        if rank <= len(shown):
            said = [why] if why is not None and why != feature.verdict.reason else []
            said += _ways(victim, is_grace_said="grace period" in "".join(said))
            lines += [line for text in said for line in filled(f"rank {rank}: {text}", "  ")]
    for workload, ranks in _shared(shown).items():
        lines += filled(f"ranks {', '.join(map(str, ranks))} are of {workload}", "  ")
    return lines


# How a victim is evicted, where that is not as executor.type says.
def _ways(victim: Victim, *, is_grace_said: bool) -> Iterator[str]:
    if victim.killer is not None:
        yield _KILLERS[victim.killer]
    if victim.grace_s is not None and not is_grace_said:
        yield f"its grace period is {'cut to ' if victim.for_use else ''}{victim.grace_s} s"


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
    resource, needs = feature.balance.resource, feature.verdict.amounts
    if feature.verdict.is_by_name:
        resource = MEMORY
    columns.append(("used", lambda each: _amount(resource, each.of(resource).used)))
    asked = [each for each in needs if not each.is_use]
    if asked == [BE_REQUESTED_CPU]:  # batch-cpu counts then, whatever the band of the pod
        return [*columns, ("asks", _batch_cpu), ("share", _share_used)]
    if asked:
        columns.append(("asks", lambda each: unit_of(resource).format(each.of(resource).requested)))
        columns.append(("of", lambda each: each.of(resource).asked.removeprefix("kubernetes.io/")))
        return columns
    columns.append(("credit", lambda each: _amount(resource, each.of(resource).released)))
    return columns + (_memory_columns(shown) if USED in needs else [])


def _memory_columns(shown: Sequence[Candidate]) -> list[_Column]:
    columns: list[_Column] = [("growth/s", _growth)]
    if any(each.caused_ns for each in shown):
        columns.append(("caused", lambda each: format_ns(each.caused_ns) if each.caused_ns else "-"))
    held = [(each, each.of(MEMORY).released) for each in shown]
    if any(is_mostly_kernel(each.kernel_bytes, released) for each, released in held):
        columns.append(("kernel", _kernel))
    if any(released - (each.kernel_bytes or 0) != each.koordinator_credit_bytes for each, released in held):
        columns.append(("Koordinator", lambda each: format_bytes(each.koordinator_credit_bytes)))
    return columns


def _amount(resource: Resource, value: int | None) -> str:
    return "-" if value is None else unit_of(resource).format(value)


def _kernel(each: Candidate) -> str:
    return "-" if each.kernel_bytes is None else format_bytes(each.kernel_bytes)


def _batch_cpu(each: Candidate) -> str:
    return format_millicpu(candidate_credit(each, BE_REQUESTED_CPU))


# Of what it asks for: by that they are ranked.
def _share_used(each: Candidate) -> str:
    used, batch = each.of(CPU).used, candidate_credit(each, BE_REQUESTED_CPU)
    return "-" if used is None or not batch else f"{used * 100 // batch} %"


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
