"""What an agent's /metrics says, as values: for pages about many nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from koordebpf.errors import DecodeError

_RESULTS = ("done", "dry_run")
_Samples = dict[str, list[tuple[Mapping[str, str], float]]]


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
