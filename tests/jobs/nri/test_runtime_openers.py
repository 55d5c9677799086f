"""What answers container runtimes is opened where it is enabled and a hook's feature gate is on."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from koordebpf.agent.jobs import open_jobs
from koordebpf.configuration.checked import agent_config
from koordebpf.decision.strategies import HOOK_GATES
from koordebpf.jobs.nri import plugin, proxy
from tests.support.contexts import context_of

ON = {"feature_gates": {gate: gate == "GroupIdentity" for gate in HOOK_GATES}}
OFF = {"feature_gates": dict.fromkeys(HOOK_GATES, False)}


@pytest.fixture(autouse=True)
def servers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (plugin, proxy):
        monkeypatch.setattr(module, "open_answers", lambda _: (None, None))
        monkeypatch.setattr(module, "report", lambda *_, **__: None)
    monkeypatch.setattr(plugin, "NriPlugin", lambda *_: contextlib.nullcontext("nri"))
    monkeypatch.setattr(proxy, "RuntimeProxyServer", lambda *_: contextlib.nullcontext("proxy"))


def opened(setting: str, settings: dict[str, Any], *, enabled: bool = True, acts: bool = True) -> Any:
    config = agent_config({**settings, setting: {"enabled": enabled}})
    jobs = open_jobs(context_of(config, folder=Path("/nowhere") if acts else None))
    return jobs[0].server if jobs else None


@pytest.mark.parametrize("setting", ["nri", "runtime_proxy"])
def test_it_is_enabled_and_one_hook_is_enough(setting: str, caplog: pytest.LogCaptureFixture) -> None:
    assert opened(setting, ON) == ("nri" if setting == "nri" else "proxy")
    assert opened(setting, ON, enabled=False) is None
    assert caplog.messages == []
    assert opened(setting, OFF) is None
    assert opened(setting, OFF, enabled=False) is None
    assert len(caplog.messages) == 1  # only what was asked for is missed


def test_an_agent_that_does_not_act_answers_no_proxy_and_a_runtime_without_effect() -> None:
    assert (opened("nri", ON, acts=False), opened("runtime_proxy", ON, acts=False)) == ("nri", None)
