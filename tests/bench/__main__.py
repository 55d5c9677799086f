"""`python -m tests.bench [NAME]… [--quick] [--json FILE]`: measure, print the table, write build/bench.json."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from koordebpf.errors import SupportError
from tests.bench.figure import Figure, table
from tests.bench.machine import Machine, describe, this_machine
from tests.bench.report import CannotMeasure, Report
from tests.support.tracefs import mount_tracefs

# Name → what it measures; tests/bench/<name>.py has a function of that name. Quick ones first.
_BENCHES = {
    "plan": "a decision for 1,000 pods, three features",
    "eviction_hooks": "hooks around evictions: a round's events, how late the loop is, memory",
    "prediction": "a minute of prediction for 110 pods, beside numpy",
    "series": "30 minutes of usage of 110 pods and 330 containers: rounds, memory, queries, snapshots",
    "incident": "the page of an incident: size, time to make it and to open it",
    "recorder": "the flight recorder: disk of a busy hour, cost, and how fast it is decided again",
    "what_if": "simulations beside what happened under those settings, and what shadow mode costs",
    "suppress": "which CPUs of 512 best-effort pods get, and a whole round of suppression",
    "burst": "a burst of latency-sensitive work until best-effort pods are held",
    "usage_looks": "the same with looks at usage and without: first cut, settled, and what they cost",
    "burst_felt": "requests in the first 200 ms of a burst, beside busy best-effort pods: with an agent and without",
    "burst_paired": "what a latency-sensitive pod with a CPU limit feels of CPU burst, beside one without it",
    "sched_cost": "what scheduler tracing takes of a node that switches",
    "felt": "CPU and wake-ups of latency-sensitive pods, without suppression and with it",
    "felt_apps": "p99 of redis and SQLite beside hogs, with the agent and without, as ratios",
    "writer": "cgroup files of 110 pods: nothing to change, one, all",
    "hooks": "runtime hooks: what they cost, and a new pod until it is limited",
    "memory_qos": "memory QoS of 110 pods: nothing to change, another NodeSLO",
    "page_cache": "a latency-sensitive pod beside a flood of page cache, limited and not; looks at 110 pods",
    "proactive": "evictions with idle memory in swap and without, in turn; stalls, and what it costs",
    "block_io": "reads of a latency-sensitive pod beside best-effort writers, limited and not",
    "dirty_pages": "commits of a latency-sensitive pod beside buffered best-effort writers, limited and not",
    "pod_events": "a pod's change until it is in the view",
    "api_evict": "decision to request at the API server",
    "start_api": "process start to ready with an API server of 5,000 pods",
    "budgets": "what 5,000 PodDisruptionBudgets add to an agent's memory",
    "api_load": "requests and watches of an agent at a real API server",
    "start": "process start to first event received",
    "backends": "each backend: until its first event, and in memory",
    "tick": "one tick under pressure",
    "http_clients": "how late the loop is, and probes are, while HTTP clients do their worst",
    "forecast": "time to threshold against what then happened",
    "scan": "usage and LRU of a thousand cgroups, beside their files",
    "usage": "CPU and memory of pods and containers: a pass, a round, an agent with it and without",
    "ring": "records out of a ring buffer, as an agent takes them",
    "kernel_cost": "what the programs add to a reclaim",
    "credit": "memory predicted to come back with a pod, beside what came back",
    "katalyst": "Katalyst's eviction manager: watermark crossed to the kill, a round, what its gate costs",
    "node_metric": "a NodeMetric of 110 pods: bytes of an hour beside koordlet's, and time",
    "nri": "a container runtime's request to its answer, idle and while the agent kills under pressure",
    "freeing": "decision to the victim's memory free again",
    "reaping": "a kill to the memory of several processes free again, one reaper and several",
    "deadman": "an agent that is stopped, until its dead man's switch has acted",
    "deadman_stalls": "how long tasks wait for memory in its windows: calm, flood of page cache, thrash",
    "deadman_machine": "the same while a pod takes a whole guest's memory, with the switch and without",
    "reaction": "threshold crossed to decision sent, beside others",
    "reaction_colocated": "the same, and a burst to the held pods, in koordlet's place and not, in turn",
    "faults": "the same to the kill, while something else hangs",
    "cri_stop": "threshold crossed to StopContainer at a real containerd",
    "cgroup_churn": "the index while a thousand cgroups are created and removed each second",
    "storm": "the agent while reclaim is at its worst",
    "controller": "the controller with 500 nodes: until all are written, and steady",
    "batch": "batch and mid resources of 5,000 Nodes with 30 pods each: a pass, memory, all written",
    "steady": "what the agent costs when nothing happens",
    "steady_deployed": "the same as it is deployed: each source and executor, suppression on",
    "steady_colocated": "the same in koordlet's place: usage, prediction, reports, runtime hooks",
    "steady_strategies": "all QoS strategies with nothing to change, and a NodeSLO until its last file",
    "steady_held": "the same while best-effort pods are held",
}
_DEFAULT_JSON = Path(__file__).parents[2] / "build" / "bench.json"


class Run(msgspec.Struct, frozen=True):
    """What build/bench.json holds."""

    machine: Machine
    quick: bool
    figures: list[Figure]
    not_measured: list[str]


def main() -> int:
    """Run those that were named, or all; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("name", nargs="*", help="; ".join(f"{name}: {what}" for name, what in _BENCHES.items()))
    parser.add_argument("--quick", action="store_true", help="small n: does it work, roughly how much")
    parser.add_argument("--json", type=Path, default=_DEFAULT_JSON, help=f"default: {_DEFAULT_JSON}")
    given = parser.parse_args()
    if unknown := sorted(set(given.name) - set(_BENCHES)):
        parser.error(f"no benchmark {', '.join(unknown)}; there are: {', '.join(_BENCHES)}")
    mount_tracefs()
    machine = this_machine()
    report = Report(quick=given.quick)
    exit_code = 0
    recorded = tempfile.TemporaryDirectory()  # by agents, as they do by default, but not among the machine's own
    os.environ["KOORDEBPF_RUN_RECORDER_FOLDER"] = recorded.name
    for name in given.name or _BENCHES:
        report.say(f"{name}: {_BENCHES[name]}")
        bench: Callable[[Report], None] = getattr(importlib.import_module(f"tests.bench.{name}"), name)
        try:
            if os.geteuid() != 0:
                raise CannotMeasure("needs root: it makes cgroups and loads programs into the kernel")
            bench(report)
        except (CannotMeasure, SupportError) as error:
            report.cannot(f"{name}: {error}")
        except RuntimeError as error:
            report.cannot(f"{name} went wrong: {error}")
            exit_code = 1
    recorded.cleanup()
    print(describe(machine))
    if given.quick:
        print("quick: n is too small for a 99th percentile")
    print(table(report.figures))
    for sentence in report.not_measured:
        print(f"not measured here: {sentence}")
    given.json.parent.mkdir(parents=True, exist_ok=True)
    run = Run(machine, given.quick, report.figures, report.not_measured)
    given.json.write_bytes(msgspec.json.format(msgspec.json.encode(run)) + b"\n")
    print(f"written: {given.json}", file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
