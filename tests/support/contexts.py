"""What strategies and jobs are opened with, of which a test gives what they use."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from koordebpf.act.writer.places import Places
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.configuration.settings import AgentConfig
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.runner.context import NodeContext


def context_of(
    config: AgentConfig,
    measuring: Any = None,
    *,
    stack: contextlib.ExitStack | None = None,
    folder: Path | None = None,
    **given: Any,
) -> NodeContext:
    """Return the context of an agent with this configuration; with a folder it is the one that acts."""
    usual: dict[str, Any] = {
        "loop": None,
        "stack": stack or contextlib.ExitStack(),
        "writer": CgroupWriter(Places({}), None),
        "metrics": AgentMetrics(),
        "report": lambda _: None,
        "publish": lambda _: None,
    }
    return NodeContext(config=config, measuring=measuring, folder=folder, **{**usual, **given})
