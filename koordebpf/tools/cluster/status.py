"""The state of every node's agent: what its pod and its metrics say; tables as kubectl prints them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from koordebpf.errors import ConfigError, DecodeError, KubeError
from koordebpf.kube.remote.pods import RemotePod, node_names, page_of
from koordebpf.printable import page, printable
from koordebpf.tools.cluster.asking import Agents, ask_all
from koordebpf.units import NS_PER_S, format_bytes, format_ns

_GAP = "   "
_RESULTS = ("done", "dry_run")
_Samples = dict[str, list[tuple[Mapping[str, str], float]]]


def kubectl_table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return the rows under their heading."""
    everything = [heading, *([printable(cell) or "-" for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in everything) for column in range(len(heading))]
    return page(
        _GAP.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in everything
    )


# What an agent's /metrics says, as values: for pages about many nodes.


class ScrapedHook(msgspec.Struct, frozen=True):
    """One hook around evictions: its calls since the agent's start, by how they ended, and how long each took."""

    name: str
    calls: Mapping[str, int]
    mean_s: float | None = None  # None: none was made


class Scraped(msgspec.Struct, frozen=True):
    """One agent. None: the agent did not say it. Bytes, ratios from 0 to 1, and seconds.

    `evict_in_s`, `full_in_s`: the forecast's point. `evicted`: pods since the agent's start, in a dry run those that
    would have been. `guards`: the codes of those that are closed.
    """

    version: str = ""
    dry_run: bool | None = None
    used_bytes: float | None = None
    capacity_bytes: float | None = None
    threshold_bytes: float | None = None
    psi_some: float | None = None
    psi_full: float | None = None
    evict_in_s: float | None = None
    full_in_s: float | None = None
    evicted: int = 0
    pods: int | None = None
    lost_signals: int = 0
    guards: tuple[str, ...] = ()
    backend: str = ""
    stalls: str = ""
    hooks: tuple[ScrapedHook, ...] = ()


def scraped(raw: bytes) -> Scraped:
    """Return what a page of metrics says.

    Raises:  DecodeError: it is no such page.
    """
    samples: _Samples = {}
    try:
        for family in text_string_to_metric_families(raw.decode()):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    except (ValueError, LookupError) as error:
        raise DecodeError(f"/metrics of the agent is no page of metrics: {error}") from error

    def of(name: str, **labels: str) -> list[float]:
        return [value for has, value in samples.get(name, ()) if labels.items() <= has.items()]

    def one(name: str, **labels: str) -> float | None:
        return min(of(name, **labels), default=None)

    def label(name: str, key: str) -> str:
        return next((has.get(key, "") for has, _ in samples.get(name, ())), "")

    dry_run = one("koordebpf_dry_run")
    pods = of("koordebpf_pods")
    return Scraped(
        version=label("koordebpf_build_info", "version"),
        dry_run=None if dry_run is None else bool(dry_run),
        used_bytes=one("koordebpf_node_used_bytes"),
        capacity_bytes=one("koordebpf_node_capacity_bytes"),
        threshold_bytes=one("koordebpf_node_threshold_bytes", mark="threshold"),
        psi_some=one("koordebpf_node_psi_avg10_ratio", degree="some"),
        psi_full=one("koordebpf_node_psi_avg10_ratio", degree="full"),
        evict_in_s=one("koordebpf_node_forecast_seconds", mark="threshold", bound="point"),
        full_in_s=one("koordebpf_node_forecast_seconds", mark="oom", bound="point"),
        evicted=int(sum(value for each in _RESULTS for value in of("koordebpf_evictions_total", result=each))),
        pods=int(sum(pods)) if pods else None,
        lost_signals=int(one("koordebpf_lost_signals") or 0),
        guards=tuple(has["reason"] for has, value in samples.get("koordebpf_guard_closed", ()) if value),
        backend=label("koordebpf_signals_info", "backend"),
        stalls=label("koordebpf_signals_info", "stalls"),
        hooks=tuple(_hooks(samples)),
    )


def _hooks(samples: _Samples) -> Iterator[ScrapedHook]:
    calls: dict[str, dict[str, int]] = {}
    for has, value in samples.get("koordebpf_eviction_hook_calls_total", ()):
        calls.setdefault(has["hook"], {})[has["outcome"]] = int(value)
    spent = {has["hook"]: value for has, value in samples.get("koordebpf_eviction_hook_seconds_total", ())}
    for name, counts in calls.items():
        made = sum(number for outcome, number in counts.items() if outcome != "dropped")
        yield ScrapedHook(name, counts, spent[name] / made if made and name in spent else None)


class NodeState(msgspec.Struct, frozen=True, omit_defaults=True):
    """One node. `agent` is its agent's pod, "": it has none. `said`: its metrics; None: for the reason in `missing`.

    `mode` is what its DaemonSet is for, `observe` or `enforce`; whether it acts says `said.dry_run`.
    """

    node: str
    agent: str = ""
    mode: str = ""
    ready: bool = False
    phase: str = ""
    said: Scraped | None = None
    missing: str = ""

    @property
    def problem(self) -> str:
        """What is wrong, in words; empty: nothing."""
        said = self.said
        if not self.agent:
            return "no agent"
        if not self.ready:
            return "guards closed: " + ", ".join(said.guards) if said and said.guards else f"not ready ({self.phase})"
        if said is None:
            return self.missing
        if said.guards:
            return "guards closed: " + ", ".join(said.guards)
        if said.lost_signals:
            return f"{said.lost_signals} signals were lost"
        return ""


class ClusterStatus(msgspec.Struct, frozen=True):
    """All nodes, by name: what `status -o json` prints."""

    schema: Literal["koordebpf.status/v1"]
    nodes: tuple[NodeState, ...]

    @property
    def is_sound(self) -> bool:
        """Whether every node has an agent that is ready and lost nothing."""
        return not any(each.problem for each in self.nodes)


def status_page(status: ClusterStatus, *, is_wide: bool) -> str:
    """Return a line for each node; wide: with the agent's pod, its version and its signals.

    Where any agent has hooks around evictions, also how many of their calls ended how, and how long one took.
    """
    has_hooks = any(each.said is not None and each.said.hooks for each in status.nodes)
    heading = ["NODE", "AGENT", "READY", "MEMORY", "EVICTS ABOVE", "EVICTED", *(["HOOKS"] if has_hooks else [])]
    wide = ["VERSION", "SIGNALS", "POD"] if is_wide else []
    rows = [_status_row(each, is_wide=is_wide, has_hooks=has_hooks) for each in status.nodes]
    return kubectl_table([*heading, *wide, "PROBLEM"], rows)


def _status_row(state: NodeState, *, is_wide: bool, has_hooks: bool) -> list[str]:
    said = state.said or Scraped()
    acts = {None: state.mode, True: "observes", False: "enforces"}[said.dry_run]
    row = [
        state.node,
        acts if state.agent else "none",
        ("yes" if state.ready else "no") if state.agent else "",
        _share(said.used_bytes, said.capacity_bytes),
        _share(said.threshold_bytes, said.capacity_bytes),
        (f"{said.evicted} dry run" if said.dry_run and said.evicted else str(said.evicted)) if state.said else "",
    ]
    if has_hooks:
        row.append("; ".join(map(_hook, said.hooks)))
    signals = f"{said.backend}, stalls {said.stalls}" if said.backend else ""
    return [*row, *([said.version, signals, state.agent] if is_wide else []), state.problem]


def _hook(hook: ScrapedHook) -> str:
    ended = [f"{number} {outcome.replace('_', ' ')}" for outcome, number in hook.calls.items() if number]
    if not ended:
        return f"{hook.name} not called"
    took = "" if hook.mean_s is None else f" (mean {format_ns(round(hook.mean_s * NS_PER_S))})"
    return f"{hook.name} {', '.join(ended)}{took}"


def top_nodes_page(status: ClusterStatus, *, is_wide: bool) -> str:
    """Return a line for each node: its memory, pressure, and when it will be full. Who is nearest stands first."""
    heading = ["NODE", "USED", "CAPACITY", "USED%", "EVICTS AT%", "SOME%", "FULL%", "EVICTS IN"]
    wide = ["FULL IN", "EVICTED", "PROBLEM"] if is_wide else []
    states = sorted(status.nodes, key=lambda each: (-_nearness(each.said), each.node))
    return kubectl_table([*heading, *wide], [_top_row(each, is_wide=is_wide) for each in states])


def _nearness(said: Scraped | None) -> float:
    if said is None or said.used_bytes is None or not said.capacity_bytes:
        return -1.0
    return said.used_bytes / (said.threshold_bytes or said.capacity_bytes)


def _top_row(state: NodeState, *, is_wide: bool) -> list[str]:
    said = state.said or Scraped()
    row = [
        state.node,
        _bytes(said.used_bytes),
        _bytes(said.capacity_bytes),
        _percent(said.used_bytes, said.capacity_bytes),
        _percent(said.threshold_bytes, said.capacity_bytes),
        "" if said.psi_some is None else f"{said.psi_some * 100:.1f}",
        "" if said.psi_full is None else f"{said.psi_full * 100:.1f}",
        _time(said.evict_in_s),
    ]
    evicted = str(said.evicted) if state.said else ""
    return [*row, *([_time(said.full_in_s), evicted, state.problem] if is_wide else [])]


def _bytes(value: float | None) -> str:
    return "" if value is None else format_bytes(round(value)).replace(" ", "")


def _percent(value: float | None, whole: float | None) -> str:
    return "" if value is None or not whole else f"{value * 100 / whole:.0f}%"


def _share(value: float | None, whole: float | None) -> str:
    if value is None:
        return ""
    percent = _percent(value, whole)
    return f"{_bytes(value)} ({percent})" if percent else _bytes(value)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return "now" if seconds <= 0 else format_ns(round(seconds) * NS_PER_S).replace(" ", "")


def cluster_status(agents: Agents, wanted: tuple[str, ...] = ()) -> ClusterStatus:
    """Return the state of these nodes, of all where none is named; a node without an agent is among them.

    Raises:  KubeError: the Nodes cannot be listed. ConfigError: one that is named is not there.
    """
    names = node_names(agents.cluster.transport)
    if unknown := next((each for each in wanted if each not in names), None):
        raise ConfigError("NODE", unknown, "must be a Node of this cluster")
    names = [each for each in names if not wanted or each in wanted]
    asked = {node: pod for node, pod in agents.by_node.items() if node in names}
    answers = ask_all(asked, lambda pod: _metrics(agents, pod), within_s=agents.within_s)
    missing = {each.node: each.reason for each in answers.missing}
    return ClusterStatus(
        schema="koordebpf.status/v1",
        nodes=tuple(_state(name, asked.get(name), answers.given.get(name), missing.get(name, "")) for name in names),
    )


def _metrics(agents: Agents, pod: RemotePod) -> Scraped:
    port = pod.metrics_port
    if not port:
        raise KubeError("its pod has no port called http: --listen is empty, or the manifest is not ours", retry=False)
    return scraped(page_of(agents.cluster.transport, pod, port, "metrics", timeout_s=agents.within_s))


def _state(name: str, pod: RemotePod | None, said: Scraped | None, missing: str) -> NodeState:
    if pod is None:
        return NodeState(name)
    return NodeState(name, pod.metadata.name, pod.mode, pod.is_ready, pod.status.phase, said, missing)
