"""A plugin outside the process, called by an agent's decision: what of it is on the wire."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from koordebpf.kube.plugins.pods import PodMessages
from koordebpf.strategies.katalyst.outside import EvictionPlugins
from koordebpf.strategies.katalyst.registry import PluginRegistry
from koordebpf.strategies.katalyst.rounds import RemoteCall
from koordebpf.strategies.katalyst.values import (
    EvictionRecord,
    PastBucket,
    PluginAnswer,
    RemoteAnswers,
    TopAsk,
    TopPods,
)
from tests.contract.apiserver import until
from tests.contract.eviction_plugin import Plugin
from tests.support.ticked_node import UIDS, Node


def test_a_plugin_that_chooses_pods_gets_their_records(tmp_path: Path, sockets: Path) -> None:
    hog = UIDS["hog"]
    node, plugin = Node(tmp_path), Plugin(sockets / "one.sock")
    registry = partial(PluginRegistry, sockets, ())
    plugins = EvictionPlugins(registry, PodMessages(None, ""), node.watch, lambda: None, 10)
    try:
        until(lambda: plugins.poll()[0] == ("one",), "a registered plugin")
        record = EvictionRecord(hog, True, (PastBucket(1_700_000_000, 600, 3),), 1, 4, 3, 5)
        plugins.call(RemoteCall(7, (hog,), (TopAsk("one", "disk", 1, (hog,), (record,)),)))
        answers: list[RemoteAnswers] = []

        def is_answered() -> bool:
            if (found := plugins.poll()[1]) is not None:
                answers.append(found)
            return bool(answers)

        until(is_answered, "its answer")
        assert answers[0].answers == (PluginAnswer("one", top=TopPods((hog,))),)
        (asked,) = plugin.asked["GetTopEvictionPods"]
        (sent,) = asked.candidate_eviction_records
        assert (sent.uid, sent.has_pdb, sent.disruptions_allowed, sent.buckets.list[0].count) == (hog, True, 1, 3)
    finally:
        plugins.close()
        plugin.stop()
        node.close()
