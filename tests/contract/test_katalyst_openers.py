"""Where the agent taints Node and CustomNodeResource for Katalyst's manager: enforcing, and with an API server."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from koordebpf.configuration.checked import agent_config
from koordebpf.strategies.katalyst.run import open_tainters
from koordebpf.strategies.katalyst.settings import KatalystSettings

USUAL: dict[str, Any] = {"source": "api", "enforce": True, "node_name": "n1"}


@pytest.mark.parametrize(
    ("changed", "taints", "is_opened"),
    [
        ({}, True, True),
        ({"source": "kubelet"}, True, True),
        ({}, False, False),
        ({"enforce": False}, True, False),
        ({"source": "file"}, True, False),
        ({"node_name": None}, True, False),
    ],
    ids=str,
)
def test_taints_are_opened(changed: dict[str, Any], taints: bool, is_opened: bool, kubeconfig: Path) -> None:
    config = agent_config({**USUAL, "kubeconfig": kubeconfig, **changed})
    with contextlib.ExitStack() as stack:
        assert (open_tainters(config, KatalystSettings(taints=taints), stack) is not None) is is_opened
