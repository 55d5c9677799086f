"""Which settings each source of pods needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from koordebpf.agent.lifecycle.open_source import open_source
from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.frames import ANNOTATIONS, LABELS
from koordebpf.errors import ConfigError
from koordebpf.kube.sources.file import FileSource

FILE = (Path("pods.yaml"),)


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({}, "--pods"),
        ({"files": FILE, "executor": "api"}, "--executor"),
        ({"source": "api"}, "--node-name"),
        ({"source": "kubelet", "kubelet_url": "https://127.0.0.1:10250", "files": FILE}, "--node-name"),
        ({"source": "kubelet", "node_name": "n", "files": FILE}, "--kubelet-url"),
        ({"source": "kubelet", "node_name": "n", "kubelet_url": "https://127.0.0.1:10250"}, "--pods"),
    ],
    ids=str,
)
def test_what_is_missing_is_named(settings: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_source(AgentConfig(**settings))
    assert caught.value.path == path


def test_files_need_no_more() -> None:
    assert isinstance(open_source(AgentConfig(files=FILE)), FileSource)


@pytest.mark.parametrize("source", ["api", "kubelet"])
def test_what_decisions_read_by_name_is_kept_of_every_pod(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: dict[str, Any] = {}
    monkeypatch.setattr("koordebpf.kube.http.transport.open_cluster", lambda *_: None)
    monkeypatch.setattr("koordebpf.kube.http.transport.open_kubelet", lambda *_, **__: None)
    monkeypatch.setattr("koordebpf.kube.sources.api.ApiSource", lambda *_, wanted: taken.update(keys=wanted.keys))
    monkeypatch.setattr("koordebpf.kube.sources.kubelet.KubeletSource", lambda *_, **given: taken.update(given))
    open_source(AgentConfig(source=source, node_name="n", kubelet_url="https://127.0.0.1:10250", files=FILE))
    assert taken["keys"] >= ANNOTATIONS | LABELS
