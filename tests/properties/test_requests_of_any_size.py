"""A request of any size that the API server takes evicts no more than the number that Go makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from koordebpf.kube.cache.objects import Container, ResourceRequirements
from koordebpf.policy.decide import decide
from koordebpf.state.build import view_of_frame
from koordebpf.state.pods.facts import pod_facts
from koordebpf.state.pods.hook_pods import hook_pod
from koordebpf.state.view import NodeView
from koordebpf.strategies.memory_qos.decide import WantedOfNode
from koordebpf.strategies.memory_qos.values import memory_pod
from tests.properties.test_cpu_features import nodes
from tests.properties.test_memory_features import frames
from tests.strategies.memory_qos.test_memory_qos_laws import RULES, view_of
from tests.support.values.builders import PodAndMeasure, pod

GOLDEN = Path(__file__).parents[1] / "golden/quantities.jsonl"
# Those that no API server refuses: what Go reads, and is not negative.
TAKEN = [
    each
    for each in map(json.loads, GOLDEN.read_text().splitlines())
    if "value" in each and not each["texts"][0].startswith("-")
]
ROWS = st.sampled_from(TAKEN)
BANDS = st.sampled_from([(5500, "kubernetes.io/batch-{}"), (7500, "kubernetes.io/mid-{}"), (7400, "{}")])


def asking(texts: list[str], resource: str, priority: int) -> PodAndMeasure:
    """Return a pod with a container for each text."""
    labels = {"koordinator.sh/eviction-enabled": "true"}
    made = pod("odd", uid="uid-odd", priority=priority, qos="LS", kube_qos="Burstable", labels=labels)
    containers = [
        Container(f"c{at}", resources=ResourceRequirements({resource: text}, {resource: text}))
        for at, text in enumerate(texts)
    ]
    return replace(made, pod=replace(made.pod, spec=replace(made.pod.spec, containers=containers)))


def others_evicted(view: NodeView) -> list[tuple[str, list[str]]]:
    return [
        (each.verdict.feature, [victim.candidate.uid for victim in each.victims if victim.candidate.uid != "uid-odd"])
        for each in decide(view).features
    ]


@given(recorded=frames(), row=ROWS, band=BANDS)
def test_of_memory(recorded: Any, row: dict[str, Any], band: tuple[int, str]) -> None:
    def view(texts: list[str]) -> NodeView:
        odd = asking(texts, band[1].format("memory"), band[0])
        measured = replace(recorded.measured, pods=(*recorded.measured.pods, odd.measure))
        return view_of_frame(replace(recorded, pods=(*recorded.pods, odd.pod), measured=measured))

    assert others_evicted(view(row["texts"])) == others_evicted(view([str(max(row["value"], 0))]))


@given(node=nodes(), row=ROWS, band=BANDS)
def test_of_cpu(node: NodeView, row: dict[str, Any], band: tuple[int, str]) -> None:
    value = str(max(row["value"], 0)) if "/" in band[1] else f"{max(row['milli'], 0)}m"
    (like, *_) = node.pods

    def view(texts: list[str]) -> NodeView:
        facts = pod_facts(asking(texts, band[1].format("cpu"), band[0]).pod)
        odd = replace(
            like, uid=facts.uid, name="odd", koord_qos="LS", priority=band[0], phase="Running", is_terminating=False,
            terms=facts.terms,
        )  # fmt: skip
        return replace(node, pods=(*node.pods, odd))

    assert others_evicted(view(row["texts"])) == others_evicted(view([value]))


@given(row=ROWS, rules=RULES)
def test_of_memory_that_is_protected(row: dict[str, Any], rules: Any) -> None:
    def directories(texts: list[str]) -> dict[tuple[str, str], int]:
        made = memory_pod(pod_facts(asking(texts, "memory", 9500).pod))
        writes, _ = WantedOfNode().of(view_of([made]), rules)
        of_node = (each for each in writes if each.file.value in ("memory.min", "memory.low"))
        values = ((each, each.value) for each in of_node if each.path.count("/") < 3)
        return {(each.path, each.file.value): value for each, value in values if isinstance(value, int)}

    # Each container's part is rounded up by less than a byte, and so much is its pod's at least.
    found, alone = directories(row["texts"]), directories([str(max(row["value"], 0))])
    assert found.keys() == alone.keys()
    assert all(0 <= found[key] - alone[key] < len(row["texts"]) for key in found)


@given(row=ROWS)
def test_of_weight(row: dict[str, Any]) -> None:
    def weight(texts: list[str]) -> int:
        made = hook_pod(asking(texts, "kubernetes.io/batch-cpu", 5500).pod, "BestEffort")
        return sum(each.batch.cpu_request_millicpu for each in made.containers if each.batch)

    if row["value"] <= 8_192_000:
        # Each container's part is rounded up by less than one.
        assert weight(row["texts"]) < max(row["value"], 0) + len(row["texts"])
