"""The page of `koordebpf pod explain`: every cgroup value of a pod, who set it, from which field. 80 columns."""

from __future__ import annotations

import msgspec

from koordebpf.kernel.cgroup.files import V1_NO_LIMIT_BYTES
from koordebpf.printable import page
from koordebpf.report.pages.columns import cut_middle, filled

_FILE_WIDTH, _VALUE_WIDTH = 22, 14
_NOT_OURS = "not by this agent"


class ExplainedValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """One value of a cgroup.

    `held`     what the file reads as.
    `owners`   feature gates, or the ladder, that have it written; none: kubelet, the runtime or the kernel has.
    `before`   what it read as before the first write.
    `source`   the field that a hook takes the value from.
    `differs`  the hook wants another value: in words which.
    `effective` of memory.min and memory.low: what is in effect, in bytes; no pod has more than the directories above.
    """

    file: str
    held: str
    owners: tuple[str, ...] = ()
    before: str | None = None
    source: str | None = None
    differs: str | None = None
    effective: int | None = None


class ExplainedCgroup(msgspec.Struct, frozen=True, omit_defaults=True):
    """One directory of a pod; `container` None: the pod's own level."""

    path: str
    values: tuple[ExplainedValue, ...]
    container: str | None = None


class ExplainedPodValues(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pod with all its directories."""

    uid: str
    name: str | None
    cgroups: tuple[ExplainedCgroup, ...]
    problems: tuple[str, ...] = ()


def pod_values_page(pod: ExplainedPodValues) -> str:
    """Return the page, at most 80 columns wide."""
    lines = [*filled(f"pod {pod.name}, uid {pod.uid}" if pod.name else f"pod with uid {pod.uid}")]
    for problem in pod.problems:
        lines += filled(f"! {problem}")
    for cgroup in pod.cgroups:
        lines += [
            "",
            *filled(f"container {cut_middle(cgroup.container, 24)}" if cgroup.container else "the pod itself"),
        ]
        lines += filled(f"/{cgroup.path}", "  ")
        for value in cgroup.values:
            lines += _value_lines(value)
    return page(lines)


def _value_lines(value: ExplainedValue) -> list[str]:
    owners = ", ".join(value.owners) or _NOT_OURS
    before = "" if value.before is None else f", before: {_shown(value.before)}"
    held = cut_middle(_shown(value.held) if value.held or not value.differs else "-", _VALUE_WIDTH)
    name = cut_middle(value.file, _FILE_WIDTH)
    lines = filled(f"{name.ljust(_FILE_WIDTH)} {held.rjust(_VALUE_WIDTH)}  {owners}{before}", "  ")
    effect = None if value.effective is None else f"in effect: {value.effective}"
    for detail in (value.source, value.differs, effect):
        if detail:
            lines += filled(detail, "      ")
    return lines


def _shown(text: str) -> str:
    is_none = text == "-1" or text.startswith("max") or (text.isdigit() and int(text) >= V1_NO_LIMIT_BYTES)
    return "no limit" if is_none else text or "empty"
