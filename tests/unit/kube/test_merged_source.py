"""Pods of one source and everything else of another, as one picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from koordebpf.kube.sources.base import MergedSource
from koordebpf.kube.sources.file import FileSource

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "b", "uid": "u"}}
CNR = {"apiVersion": "node.katalyst.kubewharf.io/v1alpha1", "kind": "CustomNodeResource", "metadata": {"name": "n"}}


def source(folder: Path, name: str, *objects: dict[str, Any]) -> FileSource:
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    return FileSource([path])


def test_the_custom_node_resource_is_that_of_the_other_source(tmp_path: Path) -> None:
    merged = MergedSource(source(tmp_path, "pods", POD), source(tmp_path, "rest", CNR, POD))
    merged.start(lambda: None)
    state = merged.state()
    assert [pod.uid for pod in state.pods] == ["u"]
    assert state.cnr is not None
    alone = MergedSource(source(tmp_path, "pods", POD, CNR), source(tmp_path, "rest"))
    alone.start(lambda: None)
    assert alone.state().cnr is None


def test_nothing_is_known_before_the_pods_are_and_the_version_grows_with_either(tmp_path: Path) -> None:
    pods, rest = source(tmp_path, "pods", POD), source(tmp_path, "rest", CNR)
    merged = MergedSource(pods, rest)
    rest.start(lambda: None)
    assert merged.state().version == 0
    pods.start(lambda: None)
    assert merged.state().version == pods.state().version + rest.state().version > pods.state().version
