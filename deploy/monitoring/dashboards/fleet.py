"""All nodes: how many act, which are worst, what best-effort pods cost and yield. A node leads to its own page."""

from __future__ import annotations

from typing import Any

from grafana import BAD, FLEET, RATE, Column, Panel, Row, evicted, nodes, of_nodes, page, stat, to_node, words
from queries import (
    BE_CPU,
    BY_BE,
    CLOSED,
    DECIDED_P99,
    DONE,
    EVICTED_1D,
    STALLED,
    of,
    of_agents,
    on,
    quantiles,
    recorded,
)

_TO_NODE = (to_node("__field.labels.node"),)
_POINT, _FULL = 'mark="threshold",bound="point"', 'degree="full"'
_THRESHOLD = 'mark="threshold"'
_BAD_WRITES = 'result=~"refused|held|yielded"'
_MODES = words((0, "enforcing", "green"), (1, "observing", "blue"))
_STALLS = ((None, "green"), (100, "red"))  # ms a minute: the budget
_USED = ((None, "green"), (0.8, "orange"), (0.95, "red"))

AT_A_GLANCE = Row("At a glance", (
    stat("Nodes enforcing", "Agents that act.", f"count({on('dry_run')} == 0) or vector(0)"),
    stat("Nodes observing", "Agents in a dry run: they only say what they would do.",
         f"count({on('dry_run')} == 1) or vector(0)"),
    stat("Nodes that may not act", "Agents with a closed guard, or with signals that were lost: they are not ready.",
         f"count({CLOSED}) or vector(0)", thresholds=BAD),
    stat("Without an answer", "Agents and controllers that Prometheus cannot scrape.",
         f"count({of('up')} == 0) or vector(0)", thresholds=BAD),
    stat("Evictions, 24 h", "Pods that were evicted within a day.", EVICTED_1D),
    stat("Decision, p99", "From the first sight of a crossing to the plan, over a day.", DECIDED_P99, "s"),
    stat("LS stalls by others", "Milliseconds a minute that latency-sensitive pods stalled for memory on account of "
         "best-effort ones, the worst node. The budget is 100.", f"max({BY_BE}) * 60000", "ms", thresholds=_STALLS),
    stat("Batch memory in use", "Of what all Nodes offer to batch pods, the part that best-effort pods use.",
         f"sum({on('be_memory_bytes')} and {on('batch_allocatable_bytes')} > 0) "
         f"/ sum({on('batch_allocatable_bytes')} > 0)", "percentunit"),
    stat("Batch CPU in use", "Of what all Nodes offer to batch pods, the part that best-effort pods use.",
         f"sum(rate({on('be_cpu_seconds_total')}[5m]) and {on('batch_allocatable_cores')} > 0) "
         f"/ sum({on('batch_allocatable_cores')} > 0)", "percentunit"),
    stat("Work thrown away", "Of the CPU time that best-effort pods used in a day, the part of pods that were evicted. "
         "The budget is 5 %.",
         f"sum(rate({on('be_lost_cpu_seconds_total')}[1d])) / (sum(rate({on('be_cpu_seconds_total')}[1d])) > 0)",
         "percentunit", thresholds=((None, "green"), (0.05, "red"))),
    stat("Needless evictions", "In a day: without them the node would have been below its threshold when their memory "
         "was back.", f"round(sum(increase({on('needless_evictions_total')}[1d])))"),
    stat("OOM kills, 24 h", "Processes that the kernel killed because a node's memory was short, or a pod's limit "
         "reached.", f"round(sum(increase({on('oom_kills_total')}[1d])))", thresholds=BAD),
))  # fmt: skip
NODES = Row("Nodes", (
    of_nodes("Nodes", "One row for each, the longest stalls first; its name leads to its page.", (
        Column("Mode", f"max by (node) ({on('dry_run')})", defaults=_MODES),
        Column("Closed guards", f"sum by (node) ({on('guard_closed')})", thresholds=BAD),
        Column("Lost signals", f"max by (node) ({on('lost_signals')})", thresholds=BAD),
        Column("Memory in use", f"max by (node) ({on('node_used_bytes')} / {on('node_capacity_bytes')})",
               "percentunit", _USED),
        Column("Threshold in", f'min by (node) ({on("node_forecast_seconds", _POINT)})', "s"),
        Column("Every task stalls", f'max by (node) ({on("node_psi_avg10_ratio", _FULL)})', "percentunit",
               ((None, "green"), (0.05, "red"))),
        Column("LS stalls by others, ms/min", f"sum by (node) ({BY_BE}) * 60000", "none", _STALLS),
        Column("Evictions, 24 h", f"round(sum by (node) (increase({DONE}[1d])))"),
        Column("Needless", f"round(sum by (node) (increase({on('needless_evictions_total')}[1d])))"),
        Column("Batch memory in use", f"max by (node) ({recorded('overcommit_yield_memory:ratio')})", "percentunit"),
        Column("Batch CPU in use", f"max by (node) ({recorded('overcommit_yield_cpu:ratio_rate5m')})", "percentunit"),
        Column("Agent's CPU", f"sum by (node) ({of_agents('process_cpu_seconds_total', '[5m]')})", "percentunit"),
    ), "LS stalls by others, ms/min"),
))  # fmt: skip


def _worst(title: str, text: str, query: str, unit: str = "short", **more: Any) -> Panel:
    return Panel(title, f"{text} The ten worst nodes.", ((f"topk(10, {query})", "{{node}}"),), unit,
                 links=_TO_NODE, **more)  # fmt: skip


WORST = Row("Which nodes are worst", (
    _worst("Others stall on account of best-effort pods", "Milliseconds a minute of all tasks. The budget is 100.",
           f"sum by (node) ({BY_BE}) * 60000", "ms", thresholds=_STALLS),
    _worst("Pods that wait for a node's memory", "Stalls in reclaim of all tasks of all pods, added up.",
           f"sum by (node) (rate({STALLED}{RATE}))", "percentunit"),
    _worst("Evictions by node", "In an hour.", f"sum by (node) (increase({DONE}[1h])) > 0"),
    _worst("Memory pressure by node", "PSI of memory over ten seconds: every task waits.",
           f"max by (node) ({on('node_psi_avg10_ratio', _FULL)})", "percentunit"),
    _worst("Nearest to its threshold", "Memory in use, of the lowest threshold of the features in force.",
           f'max by (node) ({on("node_used_bytes")} / on (instance, node) group_right () '
           f'({on("node_threshold_bytes", _THRESHOLD)} > 0))', "percentunit",
           thresholds=((None, "green"), (1, "red"))),
    Panel("Why agents may not act", "Nodes by the guard that is closed, and those whose signals were lost.",
          ((f"count by (reason) ({on('guard_closed')} > 0)", "{{reason}}"),
           (f"count({on('lost_signals')} > 0)", "signals lost"))),
))  # fmt: skip
INDICATORS = Row("Service level indicators", (
    Panel("How fast the stall budget burns", "Stalls of others on account of best-effort pods, in budgets of 100 ms a "
          "minute: above 14.4 over an hour and above 6 over six hours there is an alert. Recorded by rules.yaml.",
          ((f"topk(10, {recorded('ls_stall_by_be_ratio:rate1h')} / (0.1 / 60))", "{{node}} 1 h"),
           (f"topk(10, {recorded('ls_stall_by_be_ratio:rate6h')} / (0.1 / 60))", "{{node}} 6 h")),
          thresholds=((None, "green"), (6, "orange"), (14.4, "red")), links=_TO_NODE),
    Panel("How fast the budget of lost work burns", "CPU time of evicted best-effort pods, in budgets of 5 % of what "
          "they use: above 3 there is an alert. Recorded by rules.yaml.",
          ((f"topk(10, {recorded('be_lost_cpu:ratio_rate2h')} / 0.05)", "{{node}} 2 h"),
           (f"topk(10, {recorded('be_lost_cpu:ratio_rate1d')} / 0.05)", "{{node}} 1 d")),
          thresholds=((None, "green"), (3, "red")), links=_TO_NODE),
    Panel("Overcommit that is used", "Of what Nodes offer to batch pods, the part that best-effort pods use: the "
          "least, the median and the most of all nodes. Recorded by rules.yaml.",
          tuple((f"quantile({share}, {recorded(name)})", f"{of_what} {said}")
                for of_what, name in (("memory", "overcommit_yield_memory:ratio"),
                                      ("CPU", "overcommit_yield_cpu:ratio_rate5m"))
                for share, said in ((0, "least"), (0.5, "median"), (1, "most"))), "percentunit"),
    Panel("Share of needless evictions", "Of a node's evictions for memory in a day, the part without which it would "
          "have been below its threshold. Above 20 % there is an alert. Recorded by rules.yaml.",
          ((f"topk(10, {recorded('needless_evictions:ratio_rate1d')})", "{{node}}"),), "percentunit",
          thresholds=((None, "green"), (0.2, "red")), links=_TO_NODE),
    Panel("Lead over a full node", "Nine of ten evictions of a day were decided so long before the node would have "
          "been full: the ten shortest. Recorded by rules.yaml.",
          ((f"bottomk(10, {recorded('lead_over_oom_seconds:p10_1d')})", "{{node}}"),), "s", links=_TO_NODE),
    Panel("Kills by the kernel", "In an hour, by whose limit it was.",
          ((f"sum by (scope) (increase({on('oom_kills_total')}[1h]))", "OOM kills, {{scope}}"),)),
))  # fmt: skip
EVICTIONS = Row("Evictions", (
    Panel("Evictions", "By the feature that chose the pod, and what came of it.",
          ((f"sum by (reason, result) (increase({on('evictions_total')}{RATE}))", "{{reason}} {{result}}"),)),
    Panel("To be freed, and freed", "What features want to free, what evicted pods still hold, what came back.",
          ((f"sum by (feature) ({on('need_bytes')})", "{{feature}}"),
           (f"sum({on('pending_release_bytes')})", "awaited"),
           (f"sum(rate({on('released_bytes_total')}{RATE}))", "freed a second")), "bytes"),
    Panel("From the crossing to the decision", "Over an hour.", quantiles("crossing_to_decision_seconds"), "s"),
    Panel("From the decision to free memory", "Over an hour; of executor api with the pod's grace period.",
          quantiles("decision_to_freed_seconds"), "s"),
))  # fmt: skip
BATCH = Row("Best-effort pods", (
    Panel("Batch memory", "What all Nodes have for batch pods, and what best-effort pods use.",
          ((f"sum({on('batch_allocatable_bytes')})", "allocatable"), (f"sum({on('be_memory_bytes')})", "used")),
          "bytes"),
    Panel("Batch CPU", "What all Nodes have for batch pods, what best-effort pods may use where they are suppressed, "
          "and what they use.",
          ((f"sum({on('batch_allocatable_cores')})", "allocatable"), (f"sum({on('be_cpu_cores')})", "may use"),
           (f"sum({BE_CPU})", "used"))),
))  # fmt: skip
CONTROLLER = Row("Controller", (
    Panel("NodeSLOs", "By state; pending ones are not what they should be.",
          ((f"max by (state) ({of('koordebpf_controller_nodeslos')})", "{{state}}"),
           (f"sum({of('koordebpf_controller_leader')})", "controllers that lead"))),
    Panel("Nodes with batch resources", "By what became of their batch and mid resources.",
          ((f"max by (state) ({of('koordebpf_controller_batch_nodes')})", "{{state}}"),)),
), is_closed=True)  # fmt: skip
STRATEGIES = Row("QoS strategies and plugins", (
    Panel("Files that cannot be set", "Cgroup and kernel files by what came of the write, of all nodes.",
          ((f'sum by (file, result) (rate({on("file_writes_total", _BAD_WRITES)}{RATE})) > 0', "{{file}} {{result}}"),),
          "wps"),
    Panel("Katalyst's plugins", "Nodes on which a plugin fails, or lacks what it judges by.",
          ((f"count by (plugin, reason) ({on('katalyst_plugin_problem')} > 0)", "{{plugin}}: {{reason}}"),)),
), is_closed=True)  # fmt: skip
COST = Row("What agents cost", (
    Panel("CPU of agents", "Of one core: the median and the most of all nodes.",
          tuple((f"quantile({share}, {of_agents('process_cpu_seconds_total', RATE)})", said)
                for share, said in ((0.5, "median"), (1, "most"))), "percentunit"),
    Panel("Memory of agents", "Resident: the median and the most of all nodes.",
          tuple((f"quantile({share}, {of_agents('process_resident_memory_bytes')})", said)
                for share, said in ((0.5, "median"), (1, "most"))), "bytes"),
    Panel("Signals", "How agents measure: one line for each kind there is.",
          ((f"count by (backend, stalls, scan) ({on('signals_info')})",
            "{{backend}}: stalls {{stalls}}, scan {{scan}}"),)),
    Panel("Lost", "Kernel records, audit lines and log lines that were lost, a second. The ten worst nodes.",
          tuple((f"topk(10, rate({on(f'{name}_total')}{RATE}) > 0)", f"{{{{node}}}} {said}")
                for name, said in (("lost_records", "records"), ("audit_dropped", "audit lines"),
                                   ("log_dropped", "log lines"))), links=_TO_NODE),
))  # fmt: skip
ROWS = (AT_A_GLANCE, NODES, WORST, INDICATORS, EVICTIONS, BATCH, STRATEGIES, CONTROLLER, COST)


def fleet() -> dict[str, Any]:
    """Return the page of all nodes."""
    marks = {"list": [evicted(DONE)]}
    return page(FLEET, "koordebpf", ROWS, [nodes(is_one=False)], annotations=marks)
