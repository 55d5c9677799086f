"""Prints dashboard.json: python3 deploy/monitoring/dashboard.py > deploy/monitoring/dashboard.json."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

_HERE = 'job="koordebpf",node=~"$node"'
_RATE = "[$__rate_interval]"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH = 24


class Panel(NamedTuple):
    """One panel: queries and their legends; `unit` is Grafana's."""

    title: str
    text: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 12
    height: int = 8
    thresholds: tuple[tuple[float | None, str], ...] = ()


class Row(NamedTuple):
    """A row's title and its panels; a closed one asks for nothing until it is opened."""

    title: str
    panels: tuple[Panel, ...]
    is_closed: bool = False


def _on(metric: str, more: str = "") -> str:
    return f"koordebpf_{metric}{{{_HERE}{f',{more}' if more else ''}}}"


def _quantiles(metric: str) -> tuple[tuple[str, str], ...]:
    inner = f"sum by (le) (rate(koordebpf_{metric}_bucket{{{_HERE}}}[1h]))"
    return tuple((f"histogram_quantile({each}, {inner})", f"p{each * 100:.0f}") for each in (0.5, 0.99))


def _stat(title: str, text: str, query: str, unit: str = "short", **more: Any) -> Panel:
    return Panel(title, text, ((query, title),), unit, "stat", 4, 4, **more)


_STALLED = _on("pod_stall_seconds_total", 'scope="global"')
_DECIDED = f"increase(koordebpf_crossing_to_decision_seconds_bucket{{{_HERE}}}[1d])"
_DONE = _on("evictions_total", 'result="done"')
_BAD = ((None, "green"), (1, "red"))
AT_A_GLANCE = Row("At a glance", (
    _stat("Nodes enforcing", "Agents that act.", f"count({_on('dry_run')} == 0) or vector(0)"),
    _stat("Nodes observing", "Agents in a dry run: they only say what they would do.",
          f"count({_on('dry_run')} == 1) or vector(0)"),
    _stat("Nodes that may not act", "Agents with a closed guard, or with signals that were lost.",
          f"count(sum by (node) ({_on('guard_closed')}) + on (node) {_on('lost_signals')} > 0) or vector(0)",
          thresholds=_BAD),
    _stat("Evictions, 24 h", "Pods that were evicted within a day.", f"round(sum(increase({_DONE}[1d])))"),
    _stat("Decision, p99", "From the first sight of a crossing to the plan, over a day.",
          f"histogram_quantile(0.99, sum by (le) ({_DECIDED}))", "s"),
    _stat("LS stalls by others", "Milliseconds a minute that latency-sensitive pods stalled for memory on account of "
          "best-effort ones, the worst node.",
          f"max(sum by (node) (rate({_on('stall_charged_seconds_total')}[5m]))) * 60000", "ms"),
))  # fmt: skip
MEMORY = Row("Memory", (
    Panel("Memory in use", "As the decision sees it, with the thresholds of each feature: evictions begin at threshold "
          "and end at lower.",
          ((_on("node_used_bytes"), "{{node}} used"),
           (_on("node_threshold_bytes"), "{{node}} {{feature}} {{mark}}"),
           (_on("node_capacity_bytes"), "{{node}} capacity")), "bytes"),
    Panel("Memory pressure", "PSI of memory over ten seconds: some task waits, or all do.",
          ((_on("node_psi_avg10_ratio"), "{{node}} {{degree}}"),), "percentunit"),
    Panel("To be freed, and freed", "What features want to free, what evicted pods still hold, what came back.",
          ((_on("need_bytes"), "{{node}} {{feature}}"),
           (_on("pending_release_bytes"), "{{node}} awaited"),
           (f"rate({_on('released_bytes_total')}{_RATE})", "{{node}} freed a second")), "bytes"),
    Panel("Until a mark is reached", "Forecast of the node's use: seconds until it reaches its threshold, or is full.",
          ((_on("node_forecast_seconds"), "{{node}} {{mark}}, {{bound}}"),), "s"),
    Panel("Who waits for the node's memory", "The ten pods whose tasks stalled longest in reclaim, all tasks added up.",
          ((f"topk(10, sum by (namespace, pod) (rate({_STALLED}{_RATE})))", "{{namespace}}/{{pod}}"),), "percentunit"),
    Panel("Who waits for whom", "Stalls of a victim by what they are charged to.",
          ((f"topk(20, sum by (victim, cause) (rate({_on('stall_charged_seconds_total')}{_RATE})))",
            "{{victim}} ← {{cause}}"),), "percentunit", "heatmap"),
))  # fmt: skip
INDICATORS = Row("Service level indicators", (
    Panel("Others stall on account of best-effort pods", "Milliseconds a minute of all tasks. The budget is 100.",
          ((f"rate({_on('ls_stall_by_be_seconds_total')}[5m]) * 60000", "{{node}}"),), "ms",
          thresholds=((None, "green"), (100, "red"))),
    Panel("Best-effort work that evictions threw away", "Of the CPU time that best-effort pods used in a day. The "
          "budget is 5 %.",
          ((f"rate({_on('be_lost_cpu_seconds_total')}[1d]) / (rate({_on('be_cpu_seconds_total')}[1d]) > 0)",
            "{{node}}"),), "percentunit"),
    Panel("Overcommit that is used", "Of what the Node offers to batch pods, the part that best-effort pods use.",
          ((f"{_on('be_memory_bytes')} / ({_on('batch_allocatable_bytes')} > 0)", "{{node}} memory"),
           (f"rate({_on('be_cpu_seconds_total')}[5m]) / ({_on('batch_allocatable_cores')} > 0)", "{{node}} CPU")),
          "percentunit"),
    Panel("Needless evictions, and kills by the kernel", "Evictions without which the node would have been below its "
          "threshold when their memory was back; the OOM killer's victims.",
          ((f"increase({_on('needless_evictions_total')}[1h])", "{{node}} needless in an hour"),
           (f"increase({_on('oom_kills_total')}[1h])", "{{node}} OOM kills, {{scope}}"))),
    Panel("Lead over a full node", "How long before the node would have been full evictions were decided, as forecast; "
          "nine of ten came earlier than p10.",
          tuple((f"histogram_quantile({each}, sum by (le, node) "
                 f"(rate({_on('lead_over_oom_seconds_bucket')}[1d])))", f"{{{{node}}}} p{each * 100:.0f}")
                for each in (0.1, 0.5)), "s"),
))  # fmt: skip
EVICTIONS = Row("Evictions", (
    Panel("Evictions", "By the feature that chose the pod, and what came of it.",
          ((f"sum by (node, reason, result) (increase({_on('evictions_total')}{_RATE}))",
            "{{node}} {{reason}} {{result}}"),)),
    Panel("Why agents may not act", "Guards that are closed, and signals that worked at the start only.",
          ((_on("guard_closed"), "{{node}} {{reason}}"), (f"{_on('lost_signals')} > 0", "{{node}} signals lost"))),
    Panel("From the crossing to the decision", "Over an hour.", _quantiles("crossing_to_decision_seconds"), "s"),
    Panel("From the decision to free memory", "Over an hour; of executor api with the pod's grace period.",
          _quantiles("decision_to_freed_seconds"), "s"),
))  # fmt: skip
CPU = Row("CPU of best-effort pods", (
    Panel("CPU that best-effort pods may use", "While they are held; and what CPU features want to free.",
          ((_on("be_cpu_cores"), "{{node}} may use"),
           (f"koordlet_be_suppress_be_used_cpu_cores{{{_HERE}}}", "{{node}} use"),
           (f"{_on('need_cpu_cores')} > 0", "{{node}} to be freed, {{feature}}")), "short"),
    Panel("Batch resources", "CPU and memory that the Node has for batch pods.",
          ((f'koordlet_node_resource_allocatable{{{_HERE},resource=~"batch.*"}}', "{{node}} {{resource}} {{unit}}"),)),
))  # fmt: skip
STRATEGIES = Row("QoS strategies", (
    Panel("Files written", "Cgroup and kernel files by what came of the write.",
          ((f"sum by (node, file, result) (rate({_on('file_writes_total')}{_RATE}))",
            "{{node}} {{file}} {{result}}"),), "wps"),
    Panel("Protected memory", "What memory QoS protects from reclaim, by file and Kubernetes QoS class.",
          ((_on("protected_bytes"), "{{node}} {{file}} {{kube_qos}}"),), "bytes"),
    Panel("CPU burst", "Containers above their CPU limit, those that get no more, and those left to another process.",
          ((_on("cpu_burst_containers"), "{{node}} {{state}}"),
           (f"rate({_on('cpu_burst_wakes_total')}{_RATE})", "{{node}} throttled containers seen a second"))),
    Panel("Block IO", "Cgroups that have limits of block devices.",
          ((_on("block_io_cgroups"), "{{node}}"),)),
    Panel("Proactive reclaim", "Memory asked of best-effort pods a second, and pods that it hurt.",
          ((f"rate({_on('proactive_reclaim_bytes_total')}{_RATE})", "{{node}} {{result}}"),
           (f"rate({_on('proactive_reclaim_hurt_pods_total')}{_RATE})", "{{node}} hurt pods a second")), "Bps"),
    Panel("L3 cache by QoS class", "Of nodes with resctrl's monitoring.",
          ((f"sum by (node, qos) ({_on('resctrl_llc_occupancy_bytes')})", "{{node}} {{qos}}"),), "bytes"),
    Panel("Looks before their time", "What began a round of suppression before the second was over.",
          ((f"rate({_on('suppression_wakes_total')}{_RATE})", "{{node}} {{source}} {{outcome}}"),)),
    Panel("Wait for a CPU", "Of latency-sensitive tasks, where scheduler tracing is on.",
          _quantiles("run_queue_wait_seconds"), "s"),
), is_closed=True)  # fmt: skip
KATALYST = Row("Katalyst", (
    Panel("Evictions by plugin", "Pods that plugins asked for: evicted, and refused.",
          ((f"increase({_on('katalyst_released_pods_total')}{_RATE})", "{{node}} {{plugin}} {{mode}}"),
           (f"increase({_on('katalyst_refused_pods_total')}{_RATE})", "{{node}} {{plugin}} refused: {{reason}}"))),
    Panel("Conditions and problems", "Conditions that are reported, and plugins that fail.",
          ((_on("katalyst_condition"), "{{node}} {{condition}}"),
           (_on("katalyst_plugin_problem"), "{{node}} {{plugin}}: {{reason}}"))),
), is_closed=True)  # fmt: skip
COST = Row("What agents cost", (
    Panel("CPU", "Of one core.", ((f"rate(process_cpu_seconds_total{{{_HERE}}}{_RATE})", "{{node}}"),), "percentunit"),
    Panel("Memory", "Resident.", ((f"process_resident_memory_bytes{{{_HERE}}}", "{{node}}"),), "bytes"),
    Panel("Signals", "How each node's agent measures: one line for each kind there is.",
          ((f"count by (backend, stalls, scan) ({_on('signals_info')})",
            "{{backend}}: stalls {{stalls}}, scan {{scan}}"),)),
    Panel("Lost", "Kernel records, audit lines and log lines that were lost, a second.",
          ((f"rate({_on('lost_records_total')}{_RATE})", "{{node}} records"),
           (f"rate({_on('audit_dropped_total')}{_RATE})", "{{node}} audit lines"),
           (f"rate({_on('log_dropped_total')}{_RATE})", "{{node}} log lines"))),
))  # fmt: skip
ROWS = (AT_A_GLANCE, MEMORY, INDICATORS, EVICTIONS, CPU, STRATEGIES, KATALYST, COST)


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for row in ROWS:
        inner, height = _placed(row.panels, y + 1)
        panels.append(
            {
                "type": "row",
                "title": row.title,
                "collapsed": row.is_closed,
                "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": 1},
                "panels": inner if row.is_closed else [],
            }
        )
        panels += [] if row.is_closed else inner
        y += 1 + (0 if row.is_closed else height)
    number = 0
    for each in panels:
        for panel in (each, *each.get("panels", ())):
            number += 1
            panel["id"] = number
    return {
        "uid": "koordebpf",
        "title": "koordebpf",
        "tags": ["kubernetes", "koordebpf"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _variables()},
        "annotations": {"list": [_evicted()]},
        "panels": panels,
    }


def _placed(panels: tuple[Panel, ...], y: int) -> tuple[list[dict[str, Any]], int]:
    placed: list[dict[str, Any]] = []
    x, top, height = 0, y, 0
    for panel in panels:
        if x + panel.width > _WIDTH:
            x, top = 0, top + height
        placed.append(_panel(panel, {"x": x, "y": top, "w": panel.width, "h": panel.height}))
        x, height = x + panel.width, panel.height
    return placed, top + height - y


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    if panel.thresholds:
        steps = [{"value": value, "color": color} for value, color in panel.thresholds]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    targets = [
        {"refId": chr(ord("A") + number), "expr": expr, "legendFormat": legend}
        for number, (expr, legend) in enumerate(panel.queries)
    ]
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": targets,
    }


def _variables() -> list[dict[str, Any]]:
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"},
        {
            "name": "node",
            "type": "query",
            "label": "Node",
            "datasource": _SOURCE,
            "query": 'label_values(koordebpf_dry_run{job="koordebpf"}, node)',
            "includeAll": True,
            "multi": True,
            "allValue": ".*",
            "current": {"text": "All", "value": "$__all"},
            "refresh": 2,
            "sort": 1,
        },
    ]


# A mark in every panel at each eviction.
def _evicted() -> dict[str, Any]:
    return {
        "name": "Evictions",
        "datasource": _SOURCE,
        "enable": True,
        "iconColor": "red",
        "expr": f"sum by (node, reason) (increase({_DONE}[1m])) > 0",
        "titleFormat": "{{node}}: {{reason}}",
        "step": "1m",
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=2, ensure_ascii=False))
