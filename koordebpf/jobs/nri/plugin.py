"""Opens the NRI plugin: the container runtime asks the agent before it creates a container.

Source: koordinator pkg/koordlet/runtimehooks/nri/server.go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from koordebpf.jobs.nri.answers import AnswersJob, has_hooks, open_answers, report, run_first
from koordebpf.kernel.host.protection import return_large_blocks
from koordebpf.kube.nri.plugin import NriPlugin

if TYPE_CHECKING:
    from koordebpf.runner.context import NodeContext

_DRY_RUN = "-dry-run"


def open_job(node: NodeContext) -> AnswersJob | None:
    """Register with the container runtime, from a thread of its own, until the stack is closed.

    None: there is nothing to adjust.
    """
    config, settings = node.config, node.config.nri
    if not has_hooks("nri.enabled", config):
        return None
    if not node.acts:
        settings = replace(settings, name=settings.name + _DRY_RUN, failure_policy="ignore")
    return_large_blocks()  # a runtime begins with a list of all its containers, in messages of 4 MiB
    answers, rules = open_answers(node)
    plugin = node.stack.enter_context(NriPlugin(settings, answers, run_first if config.lock_memory else None))
    job = AnswersJob("NRI", plugin, answers, rules)
    report(job, answers, "nri", node, has_koordlets_name=config.koordinator_metrics)
    return job
