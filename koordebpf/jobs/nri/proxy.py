"""Opens the server that koord-runtime-proxy asks, where it stands between kubelet and container runtime.

Source: koordinator pkg/koordlet/runtimehooks/proxyserver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from koordebpf.jobs.nri.answers import AnswersJob, has_hooks, open_answers, report, run_first
from koordebpf.kube.runtime_proxy import RuntimeProxyServer

if TYPE_CHECKING:
    from koordebpf.runner.context import NodeContext


def open_job(node: NodeContext) -> AnswersJob | None:
    """Serve from a thread of its own until the stack is closed.

    None: this agent does not act, or there is nothing to adjust.
    """
    config = node.config
    if not (node.acts and has_hooks("runtimeProxy.enabled", config)):
        return None
    answers, rules = open_answers(node)
    begin = run_first if config.lock_memory else None
    server = node.stack.enter_context(RuntimeProxyServer(config.runtime_proxy, answers, begin))
    job = AnswersJob("runtime proxy", server, answers, rules)
    # Both have koordlet's metric: it is the runtime's own where that asks.
    has_koordlets_name = config.koordinator_metrics and not config.nri.enabled
    report(job, answers, "runtime_proxy", node, has_koordlets_name=has_koordlets_name)
    return job
