"""One node: memory, who waits for whom, evictions, CPU of best-effort pods, what its agent measures and costs."""

from __future__ import annotations

from typing import Any

from grafana import BAD, NODE, RATE, TO_FLEET, Panel, Row, dashed, evicted, heat, matrix, nodes, page, words
from grafana import stat as plain_stat
from queries import (
    BE_CPU,
    BY_BE,
    CHARGED,
    DECIDED_P99,
    DONE,
    EVICTED_1D,
    STALLED,
    YIELD_CPU,
    YIELD_MEMORY,
    of,
    of_agents,
    on,
    quantiles,
)

_STALLS = ((None, "green"), (100, "red"))  # ms a minute: the budget
_POINT, _FULL = 'mark="threshold",bound="point"', 'degree="full"'
_MEMORY_WAITS = 'psi_resource_type="mem",psi_precision="avg10",psi_degree="some"'
# Charged within the time of the page: of a pod that is gone, and of one whose first stall began its series, too.
_LAST = f"last_over_time({CHARGED}[$__range])"
_CHARGED_HERE = f"({_LAST} - ({CHARGED} offset $__range <= {_LAST}) or {_LAST})"


def _stat(title: str, text: str, query: str, unit: str = "short", **more: Any) -> Panel:
    return plain_stat(title, text, query, unit, links=(TO_FLEET,), **more)


AT_A_GLANCE = Row("At a glance", (
    _stat("Mode", "Whether the agent acts, or only says what it would do.", f"max({on('dry_run')})",
          defaults=words((0, "enforcing", "green"), (1, "observing", "blue"))),
    _stat("Why it may not act", "Guards that are closed, and signals that worked at the start only.",
          f"(sum({on('guard_closed')}) or vector(0)) + (sum({on('lost_signals')}) or vector(0))", thresholds=BAD),
    _stat("Evictions, 24 h", "Pods that were evicted within a day.", EVICTED_1D),
    _stat("Decision, p99", "From the first sight of a crossing to the plan, over a day.", DECIDED_P99, "s"),
    _stat("LS stalls by others", "Milliseconds a minute that latency-sensitive pods stalled for memory on account of "
          "best-effort ones. The budget is 100.", f"sum({BY_BE}) * 60000", "ms", thresholds=_STALLS),
    _stat("Memory used", "Of the node's capacity, as the decision sees it.",
          f"max({on('node_used_bytes')} / {on('node_capacity_bytes')})", "percentunit"),
    _stat("Threshold in", "Forecast of the time until memory in use reaches a threshold.",
          f"min({on('node_forecast_seconds', _POINT)})", "s"),
    _stat("Every task stalls", "PSI of memory, full, over ten seconds.",
          f"max({on('node_psi_avg10_ratio', _FULL)})", "percentunit",
          thresholds=((None, "green"), (0.05, "red"))),
    _stat("Best-effort CPU", "CPUs that best-effort pods may use while they are suppressed.",
          f"max({on('be_cpu_cores')})"),
    _stat("Batch memory in use", "Of what the Node offers to batch pods.", f"max({YIELD_MEMORY})", "percentunit"),
    _stat("Agent's CPU", "Of one core.", f"sum({of_agents('process_cpu_seconds_total', '[5m]')})", "percentunit"),
    _stat("Agent's memory", "Resident.", f"sum({of_agents('process_resident_memory_bytes')})", "bytes"),
))  # fmt: skip
MEMORY = Row("Memory", (
    Panel("Memory in use", "As the decision sees it, with the thresholds of each feature: evictions begin at threshold "
          "and end at lower.",
          ((on("node_used_bytes"), "used"), (on("node_threshold_bytes"), "{{feature}} {{mark}}"),
           (on("node_capacity_bytes"), "capacity")), "bytes",
          overrides=dashed((" threshold$", "red"), (" lower$", "orange"), ("^capacity$", "text"))),
    Panel("Memory pressure", "PSI of memory over ten seconds: some task waits, or all do.",
          ((on("node_psi_avg10_ratio"), "{{degree}}"),), "percentunit"),
    Panel("To be freed, and freed", "What features want to free, what evicted pods still hold, what came back.",
          ((on("need_bytes"), "{{feature}}"), (on("pending_release_bytes"), "awaited"),
           (f"rate({on('released_bytes_total')}{RATE})", "freed a second")), "bytes"),
    Panel("Until a mark is reached", "Forecast of the node's use: seconds until it reaches its threshold, or is full.",
          ((on("node_forecast_seconds"), "{{mark}}, {{bound}}"),), "s", defaults={"min": 0}),
    Panel("Pods that are full soon", "Forecast of pods' use: seconds until they reach their own limits.",
          ((on("pod_forecast_seconds", 'bound="point"'), "{{namespace}}/{{pod}}"),), "s", defaults={"min": 0}),
    Panel("Pods that are left alone", "Evicted pods that still hold memory, and memory that owners of pods spare.",
          ((on("barred_pods"), "evicted in vain: {{reason}}"),
           (f"{on('exempt_bytes')} / 2^30", "GiB spared: {{reason}}"))),
))  # fmt: skip
STALLS = Row("Who waits for whom", (
    Panel("Who waits for the node's memory", "The ten pods whose tasks stalled longest in reclaim, all tasks added up.",
          ((f"topk(10, sum by (namespace, pod) (rate({STALLED}{RATE})))", "{{namespace}}/{{pod}}"),), "percentunit"),
    Panel("Pressure in pods", "PSI of memory over ten seconds: some task of the pod waits. The ten highest.",
          ((f"topk(10, {of('koordlet_pod_psi', _MEMORY_WAITS)} / 100)", "{{pod_namespace}}/{{pod_name}}"),),
          "percentunit"),
    heat("Who waits for whom", "Stalls of a victim by what they are charged to: the 20 pairs with the longest ones.",
         f"sum by (victim, cause) (rate({CHARGED}{RATE})) and "
         f"topk(20, sum by (victim, cause) (increase({CHARGED}[$__range] @ end())))",
         "{{victim}} ← {{cause}}", "percentunit"),
    matrix("Victims and causes", "How long each pod waited for memory within the time of the page, by what it is "
           "charged to: a row for each victim, a column for each cause.",
           f"topk(100, sum by (victim, cause) ({_CHARGED_HERE}) > 0)", "s", "victim", "cause"),
))  # fmt: skip
INDICATORS = Row("Service level indicators", (
    Panel("Others stall on account of best-effort pods", "Milliseconds a minute of all tasks. The budget is 100.",
          ((f"{BY_BE} * 60000", "stalls"),), "ms", thresholds=_STALLS),
    Panel("Best-effort work that evictions threw away", "Of the CPU time that best-effort pods used in a day. The "
          "budget is 5 %.",
          ((f"rate({on('be_lost_cpu_seconds_total')}[1d]) / (rate({on('be_cpu_seconds_total')}[1d]) > 0)",
            "thrown away"),), "percentunit", thresholds=((None, "green"), (0.05, "red"))),
    Panel("Overcommit that is used", "Of what the Node offers to batch pods, the part that best-effort pods use.",
          ((YIELD_MEMORY, "memory"), (YIELD_CPU, "CPU")), "percentunit"),
    Panel("Needless evictions, and kills by the kernel", "Evictions without which the node would have been below its "
          "threshold when their memory was back; the OOM killer's victims.",
          ((f"increase({on('needless_evictions_total')}[1h])", "needless in an hour"),
           (f"increase({on('oom_kills_total')}[1h])", "OOM kills, {{scope}}"))),
    Panel("Lead over a full node", "How long before the node would have been full evictions were decided, as forecast; "
          "nine of ten came earlier than p10.",
          tuple((f"histogram_quantile({each}, sum by (le) (rate({on('lead_over_oom_seconds_bucket')}[1d])))",
                 f"p{each * 100:.0f}") for each in (0.1, 0.5)), "s"),
))  # fmt: skip
EVICTIONS = Row("Evictions", (
    Panel("Evictions", "By the feature that chose the pod, and what came of it.",
          ((f"sum by (reason, result) (increase({on('evictions_total')}{RATE}))", "{{reason}} {{result}}"),)),
    Panel("Why the agent may not act", "Guards that are closed, and signals that worked at the start only.",
          ((on("guard_closed"), "{{reason}}"), (f"{on('lost_signals')} > 0", "signals lost"))),
    Panel("From the crossing to the decision", "Over an hour.", quantiles("crossing_to_decision_seconds"), "s"),
    Panel("From the decision to free memory", "Over an hour; of executor api with the pod's grace period.",
          quantiles("decision_to_freed_seconds"), "s"),
))  # fmt: skip
CPU = Row("CPU of best-effort pods", (
    Panel("CPU that best-effort pods may use", "While they are suppressed; what they use; and what CPU features want "
          "to free.",
          ((on("be_cpu_cores"), "may use"), (BE_CPU, "use"),
           (f"{on('need_cpu_cores')} > 0", "to be freed, {{feature}}")),
          overrides=dashed(("^may use$", "orange"))),
    Panel("Batch CPU", "What the Node has for batch pods, and what best-effort pods use of it.",
          ((on("batch_allocatable_cores"), "allocatable"), (BE_CPU, "used")),
          overrides=dashed(("^allocatable$", "text"))),
    Panel("Batch memory", "What the Node has for batch pods, and what best-effort pods use of it, page cache included.",
          ((on("batch_allocatable_bytes"), "allocatable"), (on("be_memory_bytes"), "used")), "bytes",
          overrides=dashed(("^allocatable$", "text"))),
    Panel("Batch and mid resources of the Node", "As koordlet names them; memory in bytes.",
          ((of("koordlet_node_resource_allocatable", 'resource=~"batch.*|mid.*"'), "{{resource}} {{unit}}"),)),
    Panel("Used by best-effort pods, as koordlet says it", "And what suppression leaves them, by what it is set with.",
          ((of("koordlet_be_suppress_be_used_cpu_cores"), "use"),
           (of("koordlet_be_suppress_cpu_cores"), "may use, {{type}}"))),
    Panel("Looks before their time", "What began a round of suppression before the second was over.",
          ((f"rate({on('suppression_wakes_total')}{RATE})", "{{source}} {{outcome}}"),)),
))  # fmt: skip
STRATEGIES = Row("QoS strategies", (
    Panel("Files written", "Cgroup and kernel files by what came of the write.",
          ((f"sum by (file, result) (rate({on('file_writes_total')}{RATE}))", "{{file}} {{result}}"),), "wps"),
    Panel("Protected memory", "What memory QoS protects from reclaim, by file and Kubernetes QoS class.",
          ((on("protected_bytes"), "{{file}} {{kube_qos}}"),), "bytes"),
    Panel("CPU burst", "Containers above their CPU limit, those that get no more, and those left to another process.",
          ((on("cpu_burst_containers"), "{{state}}"),
           (f"rate({on('cpu_burst_wakes_total')}{RATE})", "throttled containers seen a second"))),
    Panel("Block IO", "Cgroups that have limits of block devices.", ((on("block_io_cgroups"), "cgroups"),)),
    Panel("Proactive reclaim", "Memory asked of best-effort pods a second, and pods that it hurt.",
          ((f"rate({on('proactive_reclaim_bytes_total')}{RATE})", "{{result}}"),
           (f"rate({on('proactive_reclaim_hurt_pods_total')}{RATE})", "hurt pods a second")), "Bps"),
    Panel("Page cache of best-effort pods", "What those that are limited may have, and file pages that the worst "
          "latency-sensitive pod refaulted in a second.",
          ((on("page_cache_limit_bytes"), "limit"),
           (on("page_cache_refault_bytes_per_second"), "refaults, bytes a second")), "bytes"),
    Panel("L3 cache by QoS class", "Of nodes with resctrl's monitoring.",
          ((f"sum by (qos) ({on('resctrl_llc_occupancy_bytes')})", "{{qos}}"),), "bytes"),
    Panel("Dead man's switch", "1 while it has a pod that it would kill, and how often it fired.",
          ((on("dead_man_armed"), "armed"), (f"increase({on('dead_man_fired_total')}{RATE})", "fired, {{mode}}"))),
    Panel("Wait for a CPU", "Of latency-sensitive tasks, where scheduler tracing is on.",
          quantiles("run_queue_wait_seconds"), "s"),
), is_closed=True)  # fmt: skip
SHADOW = Row("Shadow mode", (
    Panel("Evictions of shadow configurations", "What they would have evicted since the page's first moment, beside "
          "what was.",
          ((f"increase({on('shadow_evictions_total')}[$__range])", "{{configuration}}"),
           (f"sum(increase({DONE}[$__range]))", "evicted"))),
    Panel("Decisions of shadow configurations", "Beside what really happened, within an hour.",
          ((f"increase({on('shadow_decisions_total')}[1h])", "{{configuration}} {{kind}}"),)),
), is_closed=True)  # fmt: skip
KATALYST = Row("Katalyst", (
    Panel("Evictions by plugin", "Pods that plugins asked for: evicted, and refused.",
          ((f"increase({on('katalyst_released_pods_total')}{RATE})", "{{plugin}} {{mode}}"),
           (f"increase({on('katalyst_refused_pods_total')}{RATE})", "{{plugin}} refused: {{reason}}"))),
    Panel("Conditions and problems", "Conditions that are reported, and plugins that fail.",
          ((on("katalyst_condition"), "{{condition}}"), (on("katalyst_plugin_problem"), "{{plugin}}: {{reason}}"))),
), is_closed=True)  # fmt: skip
COST = Row("What the agent measures, and costs", (
    Panel("CPU", "Of one core.", ((of_agents("process_cpu_seconds_total", RATE), "agent"),
                                  (f"rate({on('recorder_cpu_seconds_total')}{RATE})", "of it the recorder")),
          "percentunit"),
    Panel("Memory", "Resident.", ((of_agents("process_resident_memory_bytes"), "agent"),), "bytes"),
    Panel("Signals", "How the agent measures.",
          ((f"count by (backend, stalls, scan) ({on('signals_info')})",
            "{{backend}}: stalls {{stalls}}, scan {{scan}}"),)),
    Panel("Signal quality", "Of the kernel's records the part that was lost: above 1 % the agent does not act. And how "
          "many runs of programs were missed a second, and ends of stalls.",
          ((f"rate({on('lost_records_total')}{RATE}) / (rate({on('records_total')}{RATE}) + "
            f"rate({on('lost_records_total')}{RATE}) > 0)", "lost of all records"),
           (f"rate({on('missed_runs_total')}{RATE})", "missed runs a second"),
           (f"rate({on('lost_ends_total')}{RATE})", "lost ends a second"),
           (on("lost_signals"), "signals lost"))),
    Panel("Lost", "Kernel records, audit lines, log lines and recorded rounds that were lost, a second.",
          ((f"rate({on('lost_records_total')}{RATE})", "records"),
           (f"rate({on('audit_dropped_total')}{RATE})", "audit lines"),
           (f"rate({on('log_dropped_total')}{RATE})", "log lines"),
           (f"rate({on('recorder_lost_rounds_total')}{RATE})", "recorded rounds"))),
    Panel("Age of the pod list", "A list that is too old closes a guard.", ((on("pods_age_seconds"), "age"),), "s"),
))  # fmt: skip
ROWS = (AT_A_GLANCE, MEMORY, STALLS, INDICATORS, EVICTIONS, CPU, STRATEGIES, SHADOW, KATALYST, COST)


def node() -> dict[str, Any]:
    """Return the page of one node."""
    marks = {"list": [evicted(DONE)]}
    link = {"type": "link", "icon": "external link", "targetBlank": False, "keepTime": False, "includeVars": False}
    return page(
        NODE,
        "koordebpf: one node",
        ROWS,
        [nodes(is_one=True)],
        annotations=marks,
        links=[link | {"title": TO_FLEET["title"], "url": TO_FLEET["url"], "tooltip": "The page of all nodes"}],
    )
