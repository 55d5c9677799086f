"""A strategy that says what a test tells it to, and the agent's parts that it needs."""

from __future__ import annotations

from typing import Any

import pytest

from koordebpf.act.writer.places import Places
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.agent import node_writer
from koordebpf.agent.node_writer import OwnStrategies
from koordebpf.decision import strategies
from koordebpf.policy.strategy import Decision, Empty, Strategy
from koordebpf.state.cpu.measured import CpuMeasured
from koordebpf.state.view import NodeView
from tests.support.values.cpu_nodes import cpu_frame


class AskedStrategy(Strategy[None, Empty, Empty]):
    """Keeps the views that it was asked about; `answer` is its next decision, to be woken `wake_after_ns` later."""

    gate, summary = "Asked", "keep what it was asked"
    settings = state = Empty
    is_on = True

    def __init__(self, name: str = "asked", *, needs_cpu: bool) -> None:
        self.name, self.needs_cpu = name, needs_cpu
        self.views: list[NodeView] = []
        self.wake_after_ns: int | None = None
        self.answer: dict[str, Any] = {}

    def decide(self, view: NodeView, measured: None, state: Empty, settings: Empty) -> Decision[Empty]:
        """Return the answer."""
        self.views.append(view)
        wake_at_ns = None if self.wake_after_ns is None else view.now_ns + self.wake_after_ns
        return Decision(**{"state": state, "reason": "asked", "wake_at_ns": wake_at_ns, **self.answer})


class Cpus:
    """Measures the CPUs: `measured` is what they are, None: they cannot be measured."""

    def __init__(self) -> None:
        self.measured: CpuMeasured | None = cpu_frame().measured.cpu
        self.looks = 0

    def measure(self, *_: object, each_pod: bool = True) -> CpuMeasured | None:
        """Return them."""
        self.looks += 1
        return self.measured


def ask_alone(monkeypatch: pytest.MonkeyPatch, *asked: AskedStrategy) -> tuple[dict[str, Any], Cpus]:
    """Let these be all strategies there are; return the parts of an agent that they need, and its CPUs."""
    monkeypatch.setattr(strategies, "STRATEGIES", asked)
    monkeypatch.setattr(node_writer, "OWN_STRATEGIES", asked)
    cpus = Cpus()
    runner = OwnStrategies(CgroupWriter(Places({}), None))
    return {"runners": (runner,), "cpu": cpus}, cpus
