"""Opens the NRI plugin: the container runtime asks the agent before it creates a container.

Source: koordinator pkg/koordlet/runtimehooks/nri/server.go.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

from msgspec.structs import replace

from koordebpf.agent.colocation.container_answers import (
    AnswersJob,
    ContainerAnswers,
    Rules,
    quick_switches,
    report,
    round_wake,
    run_first,
)
from koordebpf.kernel.host.protection import return_large_blocks
from koordebpf.kernel.proc.cpu_topology import SYSFS, CpuTopologyFiles
from koordebpf.kube.nri.plugin import NriPlugin
from koordebpf.policy.hooks.values import HookRules

if TYPE_CHECKING:
    from koordebpf.agent.colocation.jobs import ColocationParts

_DRY_RUN = "-dry-run"


def open_nri(parts: ColocationParts, stack: contextlib.ExitStack) -> AnswersJob:
    """Register with the container runtime, from a thread of its own, until the stack is closed."""
    config, settings = parts.config, parts.config.nri
    if not parts.acts:
        settings = replace(settings, name=settings.name + _DRY_RUN, failure_policy="ignore")
    return_large_blocks()  # a runtime begins with a list of all its containers, in messages of 4 MiB
    rules, in_force = open_rules(parts, stack)
    answers = ContainerAnswers(in_force, round_wake(parts.loop, parts.want_round, stack), dry_run=not parts.acts)
    stack.enter_context(quick_switches())
    plugin = stack.enter_context(NriPlugin(settings, answers, run_first if config.lock_memory else None))
    job = AnswersJob("NRI", plugin, answers, rules)
    node = (config.node_name or socket.gethostname()) if config.koordinator_metrics else None
    report(job, answers, "nri", node, parts)
    return job


def open_rules(parts: ColocationParts, stack: contextlib.ExitStack) -> tuple[Rules, HookRules]:
    """Return what works the rules out, and those in force."""
    topology = stack.enter_context(contextlib.closing(CpuTopologyFiles(SYSFS)))
    rules = Rules(parts.config, parts.measuring.known, topology)
    found = rules()
    return rules, found[0] if found is not None else HookRules()
