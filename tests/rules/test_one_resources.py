"""What pods request, are limited to and which class they have is read from their objects by one module."""

from __future__ import annotations

import ast

from tests.rules.modules import MODULES, PACKAGE, tree
from tests.rules.offenders import report

_HOME = "state/pods/effective.py"
# Of a Pod, its containers and their statuses.
_FIELDS = {"resources", "allocatedResources", "overhead", "qosClass"}
_VALUES = {"state/pods/resources.py": "the values that it returns"}
_WIRE = {
    "kube/plugins/pods.py": "writes Pods as protobuf",
    "kube/cache/bounded_pods.py": "keeps or leaves out the resources of a pod's own level as one value",
}
# Fields of the same name, of what is no Pod.
_OTHERS = {
    "controller/batch/facts.py": "of NodeMetrics, topologies and annotations",
    "controller/run.py": "of the controller itself",
    "jobs/node_topology/merge.py": "of zones of a NodeResourceTopology",
    "kube/nri/session.py": "of an answer to a container runtime",
    "kube/runtime_proxy.py": "of an answer to a container runtime",
    "slo/katalyst_access.py": "of rules of access",
    "slo/pods/cpu_placement.py": "of an annotation",
    "slo/pods/resource_status.py": "of an annotation",
    "state/cnr.py": "of a CustomNodeResource",
    "strategies/resctrl/decide.py": "of resctrl",
}


def readers() -> dict[str, set[str]]:
    """Return which of the fields each module reads."""
    found: dict[str, set[str]] = {}
    for path in MODULES:
        names = {
            node.attr
            for node in ast.walk(tree(path))
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and node.attr in _FIELDS
        }
        if names:
            found[str(path.relative_to(PACKAGE))] = names
    return found


def test_it_is_read_by_one_module() -> None:
    known = {_HOME, *_VALUES, *_WIRE, *_OTHERS}
    wrong = (f"{path}: {', '.join(sorted(names))}" for path, names in readers().items() if path not in known)
    report(wrong, f"ask {_HOME} what a pod requests, is limited to and which class it has")


def test_what_is_listed_reads_it() -> None:
    assert {_HOME, *_VALUES, *_WIRE, *_OTHERS} - readers().keys() == set()
    assert all(readers()[path] == {"resources"} for path in _OTHERS)
