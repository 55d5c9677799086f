"""The dead man's switch of a whole machine: an agent is stopped, and a best-effort pod takes the memory of a guest."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path

from koordebpf.decision.dead_man import AT_LIMIT
from koordebpf.kernel.bpf.deadman import support_of_dead_man
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from tests.bench.figure import figure
from tests.bench.report import CannotMeasure, Report, pair_count
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.host.rigs.short_machine import (
    AGENT_SCORE,
    LEFT_MIB,
    MOST_MIB,
    THRESHOLD_PERCENT,
    ShortMachine,
    available_mib,
    counted,
    machine_mib,
    score,
    stay_in_memory,
)

_AT_MOST_S = 60.0  # for the switch
_WITHOUT_S = 60.0
_FIRED = 'koordebpf_dead_man_fired_total{mode="kill"}'


def deadman_machine(report: Report) -> None:
    """Stop an agent, KOORDEBPF_PAIRS times (20), while a pod takes the machine's memory.

    Without the switch KOORDEBPF_WITHOUT times (once), which takes a minute each. With KOORDEBPF_RESERVED_MIB kubepods
    has a limit, that much below what is available at first, and the pods meet it in place of the machine's.
    """
    if machine_mib() > MOST_MIB:
        raise CannotMeasure(f"it fills the machine, and this one has more than {MOST_MIB} MiB")
    if not (support := support_of_dead_man()).works:
        raise CannotMeasure(support.reason)
    report.say(support.how)
    n = 2 if report.quick else pair_count(20)
    stay_in_memory()
    with tempfile.TemporaryDirectory() as name, ShortMachine(find_memory_hierarchy()) as machine:
        folder = Path(name)
        machine.starts_walking()
        took = _with_switch(report, machine, folder, n)
        for _ in range(int(os.environ.get("KOORDEBPF_WITHOUT", "1"))):
            _without(report, machine, folder)
    survived = [ms for ms in took if ms is not None]
    report.add(
        figure(
            f"agent stopped, machine thrashes → best-effort pod dead; survived {len(survived)} of {n}",
            "ms",
            survived or [0.0],
            f"from SIGSTOP, and all memory but {LEFT_MIB} MiB asked for at once, until no process of the pod is left;"
            f" machine of {machine_mib()} MiB, threshold {THRESHOLD_PERCENT} %, heartbeat late after 500 ms; survived:"
            " no process was killed by the kernel for memory, and the latency-sensitive pod runs",
        )
    )


def _with_switch(report: Report, machine: ShortMachine, folder: Path, n: int) -> list[float | None]:
    took: list[float | None] = []
    machine.write_manifest(folder)
    with LiveAgent(folder, *machine.arguments(folder, "kill"), keeps_frames=False) as agent:
        agent.started()
        report.say(f"{available_mib()} MiB available, the agent runs")
        score(agent.process.pid, AGENT_SCORE)
        for number in range(n):
            name = f"be-{number}"
            machine.has_hog(name)
            machine.write_manifest(folder)
            until(lambda: agent.metric("koordebpf_dead_man_armed") == 1, lambda: f"armed, but:\n{agent.log}")
            fired, before = agent.metric(_FIRED), counted()
            agent.process.send_signal(signal.SIGSTOP)
            ms = _hog_dies(machine, _AT_MOST_S)
            after, alive = counted(), machine.are_others_alive
            agent.process.send_signal(signal.SIGCONT)
            if ms is not None:
                until(lambda was=fired: agent.metric(_FIRED) > was, lambda: f"a shot, but:\n{agent.log}", 10)
            of_it = {key: round(after[key] - before[key]) for key in before}
            spared, late = (agent.metric(f"koordebpf_dead_man_{key}_total") for key in ("spared", "late_stalls"))
            shown = "no kill" if ms is None else f"{ms:.0f} ms"
            report.say(f"{number}: {shown}, {of_it}, spared {spared:.0f}, late stalls {late:.0f}")
            took.append(ms if not of_it["oom_kill"] and alive else None)
            machine.loses_hog(name)
            machine.write_manifest(folder)
            until(lambda: agent.metric("koordebpf_dead_man_armed") == 0, "no victim")
        shots = [str(plan["sentence"]) for plan in agent.plans()]
        report.say(f"{sum(AT_LIMIT in each for each in shots)} of {len(shots)} times it fired for waits{AT_LIMIT}")
        agent.stop()
    return took


def _without(report: Report, machine: ShortMachine, folder: Path) -> None:
    machine.has_hog("be")
    with LiveAgent(folder, *machine.arguments(folder, "nothing"), keeps_frames=False) as agent:
        agent.started()
        score(agent.process.pid, AGENT_SCORE)
        before = counted()
        agent.process.send_signal(signal.SIGSTOP)
        ms = _hog_dies(machine, _WITHOUT_S)
        of_it = {key: value - before[key] for key, value in counted().items()}
        alive = machine.are_others_alive
        left = available_mib()
        machine.loses_hog("be")
        agent.process.send_signal(signal.SIGCONT)
        shown = f"the pod lives after {_WITHOUT_S:g} s" if ms is None else f"it died after {ms:.0f} ms"
        report.say(f"without the switch: {shown}; {of_it}; {left} MiB available; the other pod runs: {alive}")
        agent.stop()


# None: some of it lives.
def _hog_dies(machine: ShortMachine, at_most_s: float) -> float | None:
    began = time.monotonic()
    machine.grows()
    while machine.is_hog_alive:
        if time.monotonic() - began > at_most_s:
            return None
        time.sleep(0.02)
    return (time.monotonic() - began) * 1000
