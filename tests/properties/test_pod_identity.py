"""Whatever a pod says of itself, every other pod keeps its cgroup, its memory, its rank inputs and its stalls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from koordebpf.attribution.index import CgroupIndex
from koordebpf.events.layout import NOT_KNOWN
from koordebpf.kube.cache.objects import ObjectMeta, OwnerReference, Pod, PodSpec, PodStatus
from koordebpf.state.measured import PodMeasure
from koordebpf.state.stalls.sums import Row, ScanSums, packed
from koordebpf.state.stalls.windows import StallGrowth, StallWindow
from tests.support.values.builders import DEFAULTS, PodAndMeasure, frame, plan_of

ROOT, EVIL, WEB, HOG, NEW, STATIC = 1, 10, 20, 30, 40, 50
UIDS = {
    EVIL: "00000000-0000-4000-8000-00000000000e",
    WEB: "00000000-0000-4000-8000-00000000000b",
    HOG: "00000000-0000-4000-8000-000000000009",
    NEW: "00000000-0000-4000-8000-000000000001",  # not on the list yet
    STATIC: "00000000-0000-4000-8000-00000000005a",  # of the mirror pod
}
HASH = "d0141ec4c1df7a3c9f9d3b6b4d2f8c5a"
MIRROR = {"kubernetes.io/config.hash": HASH, "kubernetes.io/config.mirror": HASH, "kubernetes.io/config.source": "file"}
NODE = OwnerReference("Node", "n1", "uid-of-n1", True)

KEYS = st.sampled_from(
    [
        *MIRROR,
        "kubernetes.io/config.seen",
        "koordinator.sh/qosClass",
        "koordinator.sh/priority",
        "koordinator.sh/priority-class",
        "koordinator.sh/eviction-policy",
        "koordinator.sh/eviction-priority",
        "koordinator.sh/eviction-enabled",
        "node.koordinator.sh/reservation",
        "scheduling.koordinator.sh/resource-status",
    ]
)
NAMES = [*UIDS.values(), HASH]
VALUES = st.one_of(
    st.sampled_from(NAMES),
    st.sampled_from([f"pod{each}" for each in NAMES]),
    st.sampled_from([f"kubepods-besteffort-pod{each.replace('-', '_')}.slice" for each in NAMES]),
    st.sampled_from([each.replace("-", "_") for each in NAMES]),
    st.sampled_from(["", ".", "..", "/", "kubepods", "LS", "BE", "LSE", "-1", "9999", "{}", "[]", '["a"]', "\0", "\n"]),
    st.text(max_size=12),
)
WORDS = st.dictionaries(KEYS, VALUES, max_size=6)
ALL_AT_ONCE = st.sampled_from(NAMES).map(lambda name: dict.fromkeys(MIRROR, name))


def tree(driver: str, levels: list[int]) -> list[tuple[int, int, str]]:
    """Return a walk of the node: pods in the order of their ids, each with one container."""
    top = "kubepods" if driver == "cgroupfs" else "kubepods.slice"
    be = f"{top}/besteffort" if driver == "cgroupfs" else f"{top}/kubepods-besteffort.slice"
    walk = [(ROOT, 0, ""), (2, ROOT, top), (3, 2, be)]
    for level in levels:
        name = HASH if level == STATIC else UIDS[level]
        own = f"pod{name}" if driver == "cgroupfs" else f"kubepods-besteffort-pod{name.replace('-', '_')}.slice"
        walk += [(level, 3, f"{be}/{own}"), (level + 1, level, f"{be}/{own}/{level:064x}")]
    return walk


def pods(said: Mapping[int, Mapping[str, str]], labels: Mapping[str, str], *, forged: bool) -> list[Pod]:
    found = []
    for level in (WEB, STATIC, HOG, EVIL):
        owner = [NODE] if level == STATIC or (level == EVIL and forged) else None
        meta = ObjectMeta(
            name=f"pod-{level}",
            namespace="ns",
            uid=UIDS[level],
            labels=dict(labels) if level == EVIL else {"koordinator.sh/qosClass": "LS" if level == WEB else "BE"},
            annotations=dict(said.get(level, {})) or None,
            ownerReferences=owner,
        )
        status = PodStatus(phase="Running", qosClass="BestEffort")
        found.append(Pod(meta, spec=PodSpec(nodeName="n1", priority=5000), status=status))
    return found


def seen(driver: str, levels: list[int], known: list[Pod], of: list[int]) -> dict[int, Any]:
    """Return all that the agent has of these pods on the way to a decision."""
    index = CgroupIndex()
    index.replace_all(tree(driver, levels))
    index.set_pods(known)
    ids = [ROOT, 2, 3, *(each for level in levels for each in (level, level + 1))]
    rows: list[Row] = [
        (each, each - 1, each * 256, 1 << 60, 0, NOT_KNOWN, 0, 0, 0, 0, each, each, 0, 0, 0) for each in ids
    ]
    sums = ScanSums(packed(rows), index.subtree_pod, 4096)
    measures = [PodMeasure(uid, cgroup_id, sums.pod(uid, cgroup_id)) for uid, cgroup_id in index.pod_cgroups().items()]
    by_uid = {each.uid: each for each in measures}
    recorded = frame([PodAndMeasure(pod, by_uid.get(pod.uid)) for pod in known], used=900)
    (feature,) = plan_of(recorded, DEFAULTS).features
    ranked = {each.uid: replace(each, rank=0) for each in feature.candidates}
    barred = {each.uid: each for each in feature.excluded}
    stalls = StallWindow().add(1, {each: StallGrowth(global_ns=each) for each in ids}, index.subtree_pod)
    return {
        level: (
            index.pod_cgroup(UIDS[level]),
            [index.owner(each) for each in (level, level + 1)],
            index.names_to_act_on(UIDS[level]),
            by_uid.get(UIDS[level]),
            ranked.get(UIDS[level]),
            barred.get(UIDS[level]),
            stalls.get(UIDS[level]),
        )
        for level in of
    }


@pytest.mark.parametrize("driver", ["cgroupfs", "systemd"])
@settings(max_examples=300)
@given(annotations=st.one_of(WORDS, ALL_AT_ONCE), labels=WORDS, forged=st.booleans(), youngest=st.booleans())
def test_no_word_of_one_pod_changes_anything_of_another(driver, annotations, labels, forged, youngest):
    levels = [EVIL, WEB, HOG, NEW, STATIC] if youngest else [WEB, HOG, NEW, STATIC, EVIL]
    # Who may forge an owner too can claim a static pod's own hash: then no pod owns it, and nothing is done to it.
    others = [WEB, HOG] if forged else [WEB, HOG, STATIC, NEW]
    silent = pods({STATIC: MIRROR}, {}, forged=forged)
    loud = pods({STATIC: MIRROR, EVIL: annotations}, labels, forged=forged)
    before, after = (seen(driver, levels, known, others) for known in (silent, loud))
    assert after == before


@settings(max_examples=300)
@given(annotations=st.one_of(WORDS, ALL_AT_ONCE), forged=st.booleans())
def test_no_word_of_a_pod_leads_an_executor_to_a_directory_with_an_api_servers_uid(annotations, forged):
    index = CgroupIndex()
    index.replace_all(tree("cgroupfs", [EVIL, WEB, HOG, NEW]))
    index.set_pods(pods({EVIL: annotations}, {}, forged=forged))
    assert set(index.names_to_act_on(UIDS[EVIL])) <= {UIDS[EVIL], HASH, *annotations.values()} - {
        UIDS[level] for level in (WEB, HOG, NEW, STATIC)
    }
