"""Measures one node again and again for a person to look at. Decides and acts on nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator

import msgspec

from koordebpf.agent.collector import Collector
from koordebpf.agent.known import Known
from koordebpf.agent.watch import NodeWatch
from koordebpf.detect.be_memory_evict import threshold_bytes
from koordebpf.events.layout import decode_stall
from koordebpf.kernel.loop import Loop
from koordebpf.kube.objects import ClusterState
from koordebpf.state.build import build_view
from koordebpf.state.stalls import NODE, StallWindow
from koordebpf.state.view import Measured, NodeView
from koordebpf.units import NS_PER_S


class Look(msgspec.Struct, frozen=True):
    """One measurement of the node."""

    cluster: ClusterState | None
    measured: Measured
    view: NodeView
    threshold_bytes: int | None


def looks(watch: NodeWatch, interval_s: float, *, once: bool) -> Iterator[Look]:
    """Yield the node as it is, each `interval_s`, until SIGTERM or SIGINT; with `once`, after one interval and no more.

    The first look is not shown: growth and stalls need two.
    """
    known, stalls = Known(), StallWindow()
    collector = Collector(watch.scope, watch.signals, watch.index)
    is_first = True
    with Loop() as loop:
        loop.stop_on_signals()
        if watch.source:
            watch.source.start(loop.wake)
        try:
            while not loop.stopping:
                now_ns = time.monotonic_ns()
                watch.drain()
                state, is_news = watch.cluster()
                if is_news and state:
                    known.learn(state)
                    watch.know_host_applications(known.host_applications)
                sums = [decode_stall(key, value) for key, value in watch.signals.stalls()]
                stalls.push(now_ns, sums, watch.index.subtree_pod)
                rows = stalls.rows()
                measured = collector.everything(rows, (), rows.get(NODE))
                if not is_first:
                    view = build_view(
                        pods=known.facts,
                        node=known.node,
                        strategy=known.strategy,
                        measured=measured,
                        feature_gates={},
                    )
                    yield Look(state, measured, view, threshold_bytes(known.strategy, view.capacity_bytes))
                    if once:
                        return
                is_first = False
                due_ns = now_ns + int(interval_s * NS_PER_S)
                while not loop.stopping and time.monotonic_ns() < due_ns:
                    loop.wait(due_ns)
        finally:
            collector.close()
