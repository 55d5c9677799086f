"""What a recording keeps of annotations and labels is what the code reads: each key is known to be a pod's or not."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from koordebpf.decision.frames import ANNOTATIONS, LABELS
from tests.rules.modules import MODULES, tree
from tests.rules.offenders import report
from tests.rules.pages import ROOT

_KEY = re.compile(r"(?:[a-z0-9.-]+\.)?(?:koordinator\.sh|kubewharf\.io|kubernetes\.io|k8s\.io)/[A-Za-z0-9_.-]+")
_VERSION = re.compile(r"/v\d+((alpha|beta)\d+)?$")
# Of other objects than pods, and names of resources: a decision does not look for them in a pod's annotations.
_OTHERS = frozenset(
    {
        "app.kubernetes.io/managed-by",
        "kubelet.koordinator.sh/cpu-manager-policy",
        "koordinator.sh/gpu-core",
        "koordinator.sh/gpu-memory",
        "koordinator.sh/gpu-memory-ratio",
        "kubernetes.io/arch",
        "kubernetes.io/batch-cpu",
        "kubernetes.io/batch-memory",
        "kubernetes.io/mid-cpu",
        "kubernetes.io/mid-memory",
        "kubernetes.io/os",
        "node.koordinator.sh/be-cpu-shared-pools",
        "node.koordinator.sh/colocation-strategy",
        "node.koordinator.sh/cpu-basic-info",
        "node.koordinator.sh/cpu-normalization-ratio",
        "node.koordinator.sh/cpu-reclaim-ratio",
        "node.koordinator.sh/cpu-shared-pools",
        "node.koordinator.sh/cpu-topology",
        "node.koordinator.sh/enable-numa-reservation",
        "node.koordinator.sh/memory-reclaim-ratio",
        "node.koordinator.sh/mid-static-cpu-reserved-ratio",
        "node.koordinator.sh/mid-static-memory-reserved-ratio",
        "node.koordinator.sh/network-bandwidth",
        "node.koordinator.sh/originExtendedAllocatable",
        "node.koordinator.sh/pod-cpu-allocs",
        "node.koordinator.sh/raw-allocatable",
        "node.koordinator.sh/reservation",
        "node.koordinator.sh/system-qos-resource",
        "node.koordinator.sh/thirdPartyAllocations",
        "node.kubernetes.io/instance-type",
        "resource.katalyst.kubewharf.io/net_bandwidth",
        "resource.katalyst.kubewharf.io/reclaimed_memory",
        "resource.katalyst.kubewharf.io/reclaimed_millicpu",
        "topology.kubernetes.io/zone",
    }
)


def _keys(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree(path)):
        value = node.value if isinstance(node, ast.Constant) else None
        if isinstance(value, str) and _KEY.fullmatch(value) and not _VERSION.search(value):
            yield getattr(node, "lineno", 0), value


def test_each_key_of_the_package_is_known_to_be_a_pods_or_not() -> None:
    known = ANNOTATIONS | LABELS | _OTHERS
    found = [(path, line, key) for path in MODULES for line, key in _keys(path)]
    report(
        (f"{path.relative_to(ROOT)}:{line}: {key}" for path, line, key in found if key not in known),
        "add a key that pods have to koordebpf/decision/frames.py, any other to _OTHERS",
    )
    report(sorted(_OTHERS - {key for _, _, key in found}), "remove from _OTHERS what the package does not name")


def test_conditions_of_pods_are_read_by_a_name_that_is_known() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in MODULES
        if path.relative_to(ROOT).parts[1] in ("attribution", "decision", "jobs", "policy", "state", "strategies")
        and "status.conditions" in path.read_text()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr == "type"
        if not isinstance(node.comparators[0], ast.Name)
    ]
    report(found, "name the condition by a constant that koordebpf/decision/frames.py has in CONDITIONS")
