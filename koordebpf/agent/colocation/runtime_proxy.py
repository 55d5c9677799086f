"""Opens the server that koord-runtime-proxy asks, where it stands between kubelet and container runtime.

Source: koordinator pkg/koordlet/runtimehooks/proxyserver.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

from koordebpf.agent.colocation.container_answers import (
    AnswersJob,
    ContainerAnswers,
    quick_switches,
    report,
    round_wake,
    run_first,
)
from koordebpf.agent.colocation.nri import open_rules
from koordebpf.kube.runtime_proxy.server import RuntimeProxyServer

if TYPE_CHECKING:
    from koordebpf.agent.colocation.jobs import ColocationParts


def open_runtime_proxy(parts: ColocationParts, stack: contextlib.ExitStack) -> AnswersJob:
    """Serve from a thread of its own until the stack is closed."""
    config = parts.config
    rules, in_force = open_rules(parts, stack)
    answers = ContainerAnswers(in_force, round_wake(parts.loop, parts.want_round, stack), dry_run=False)
    stack.enter_context(quick_switches())
    begin = run_first if config.lock_memory else None
    server = stack.enter_context(RuntimeProxyServer(config.runtime_proxy, answers, begin))
    job = AnswersJob("runtime proxy", server, answers, rules)
    # Both have koordlet's metric: it is the runtime's own where that asks.
    has_names = config.koordinator_metrics and not config.nri.enabled
    report(job, answers, "runtime_proxy", (config.node_name or socket.gethostname()) if has_names else None, parts)
    return job
