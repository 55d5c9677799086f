"""Every setting of the configuration file: its place, its form, its default and the reason for it.

The table is made from the structs that the agent runs with, their types and their docstrings, so that a setting is
written down once. Refuses to read files.
"""

from __future__ import annotations

import enum
import functools
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.strategies import FEATURE_GATES, OWN_STRATEGIES

Form = Literal["plain", "duration", "quantity"]

# What the file calls a field of AgentConfig; the others have their own name, in camelCase.
_PLACES: Mapping[str, str] = {
    "source": "source.type",
    "files": "source.files",
    "node_name": "source.nodeName",
    "kubeconfig": "source.kubeconfig",
    "kube_context": "source.context",
    "kubelet_url": "source.kubelet.url",
    "kubelet_token_file": "source.kubelet.tokenFile",
    "kubelet_ca_file": "source.kubelet.caFile",
    "kubelet_insecure": "source.kubelet.insecure",
    "config_map": "slo.configMap",
    "node_cgroup": "node.cgroup",
    "cgroup_root": "node.cgroupRoot",
    "run_dir": "node.runDir",
    "stand_by": "node.standBy",
    "backend": "backend.type",
    "min_stall_ns": "backend.minStall",
    "sample_floor_ns": "sampling.floor",
    "sample_cap_ns": "sampling.cap",
    "executor": "executor.type",
    "kill_after_s": "executor.killAfter",
    "lift_limits": "executor.liftLimits",
    "cri_socket": "executor.criSocket",
    "listen": "report.listen",
    "probe_listen": "probes.listen",
    "audit": "report.audit",
    "frames": "report.frames",
    "koordinator_metrics": "report.koordinatorMetrics",
    "pod_series": "report.podSeries",
    "log_format": "report.logFormat",
}
# The same of strategies that do not have a section of that name.
_SECTIONS: Mapping[tuple[str, ...], str] = {
    ("strategies", each.name): each.section for each in OWN_STRATEGIES if each.section
}
# Not in the file: enforcement has to be typed, and `compat` sets the other.
TYPED = "enforce"
_ELSEWHERE = ((TYPED,), ("eviction", "strict_compat"))
# Absent, these depend on the source.
_BY_SOURCE = ("executor.type", "guards.podsMaxAge")
# Suffix of a field → its form in the file.
_UNITS: Mapping[str, Form] = {"_ns": "duration", "_s": "duration", "_bytes": "quantity"}


class Setting(msgspec.Struct, frozen=True):
    """One leaf of the file. `type` is the field's own, without None."""

    path: str  # in the file, as eviction.coolTime
    field: tuple[str, ...]  # of AgentConfig, as (eviction, cool_time_ns)
    form: Form
    type: Any
    default: Any
    is_nullable: bool
    why: str

    @property
    def file_type(self) -> Any:
        """What a plain value of the file has to be."""
        return _file_type(self.type)


@functools.cache
def settings() -> tuple[Setting, ...]:
    """Return every setting, in the order of the file."""
    found = list(_settings_of(AgentConfig(), (), ""))
    order = list(dict.fromkeys(setting.path.partition(".")[0] for setting in found))
    return tuple(sorted(found, key=lambda setting: order.index(setting.path.partition(".")[0])))


def sections_of(fields: Collection[str]) -> frozenset[str]:
    """Return the sections of the file that have settings of these fields of AgentConfig."""
    return frozenset(each.path.partition(".")[0] for each in settings() if each.field[0] in fields)


def _settings_of(of: msgspec.Struct, field: tuple[str, ...], path: str) -> Iterator[Setting]:
    why = reasons(type(of))
    for each in msgspec.structs.fields(of):
        here, value = (*field, each.name), getattr(of, each.name)
        if here in _ELSEWHERE:
            continue
        place = _PLACES.get(each.name) if not field else _SECTIONS.get(here)
        place = place or f"{path}{_camel(each.name)}"
        if isinstance(value, msgspec.Struct):
            yield from _settings_of(value, here, f"{place}.")
        elif here == ("feature_gates",):
            for gate, is_on in FEATURE_GATES.items():
                yield Setting(f"{place}.{gate}", (*here, gate), "plain", bool, is_on, False, why.get(each.name, ""))
        else:
            default = None if place in _BY_SOURCE else value
            forms = [form for suffix, form in _UNITS.items() if each.name.endswith(suffix)]
            form: Form = forms[0] if forms else "plain"
            some = _some(each.type)
            is_nullable = some is not each.type or default is None
            yield Setting(place, here, form, _bounded(each.name, some), default, is_nullable, why.get(each.name, ""))


def reasons(of: type[msgspec.Struct]) -> dict[str, str]:
    """Return what the docstring says of each field: paragraphs that begin with its name in backquotes."""
    entries: dict[str, str] = {}
    name = None
    for line in (of.__doc__ or "").splitlines():
        begin = re.match(r"\s*`(\w+)`\s+(.*)", line)
        if begin:
            name, entries[begin[1]] = begin[1], begin[2].strip()
        elif not line.strip():
            name = None
        elif name:
            entries[name] += f" {line.strip()}"
    return {name: _for_readers(text, of) for name, text in entries.items()}


def _for_readers(text: str, of: type[msgspec.Struct]) -> str:
    # As a sentence, with the file's names of other fields and of nothing.
    fields = of.__struct_fields__
    text = re.sub(r"`(\w+)`", lambda found: _camel(found[1]) if found[1] in fields else found[0], text)
    text = re.sub(r"\bNone\b", "null", text)
    return text[:1].upper() + text[1:]


def _camel(name: str) -> str:
    for suffix in _UNITS:
        name = name.removesuffix(suffix)
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


def _some(of: Any) -> Any:
    # The type without None.
    if get_origin(of) in (Union, UnionType):
        rest = [each for each in get_args(of) if each is not NoneType]
        return rest[0] if len(rest) == 1 else Union[tuple(rest)]  # noqa: UP007 — made at run time
    return of


def _bounded(name: str, of: Any) -> Any:
    # Nothing that is counted, timed or measured is negative.
    if of in (int, float):
        highest = 1 if name.endswith("_ratio") else 100 if name.endswith("_percent") else None
        return Annotated[of, Meta(ge=0, le=highest)]
    return of


def _file_type(of: Any) -> Any:
    # As JSON and YAML have it: a Path is text, an Enum one of its words, a set a list.
    if of is Path:
        return Annotated[str, Meta(min_length=1)]
    if isinstance(of, type) and issubclass(of, enum.Enum):
        return Literal[tuple(member.value for member in of)]
    if get_origin(of) in (tuple, frozenset):
        item = _file_type(get_args(of)[0])
        return tuple[item, ...]  # type: ignore[valid-type]  # made at run time
    return of
