"""Section `evictionHooks` and `evictionWarning` of the configuration, and that nothing is loaded where none is set."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from koordebpf.act.eviction_hook_settings import EvictionHookSettings, WebhookHook
from koordebpf.agent.sinks import open_eviction_hooks, open_foresight
from koordebpf.configuration.checked import agent_config, check_config
from koordebpf.configuration.file import config_text, read_config
from koordebpf.configuration.settings import AgentConfig
from koordebpf.errors import ConfigError
from koordebpf.report.job_pages import JobPages
from koordebpf.store.open_plans import OpenPlans
from koordebpf.tools.doctor.checks import eviction_hook_sources
from koordebpf.units import NS_PER_S

ROOT = Path(__file__).parents[3]
HEAD = "apiVersion: koordebpf.io/v1alpha1\nkind: AgentConfiguration\n"
HOOKS = """
evictionHooks:
  webhooks:
    - name: page-me
      urlFile: /etc/url
      when: [before]
      timeoutSeconds: 2
      dryRun: true
    - name: chat
      url: https://chat.example/hooks/1?a=b
      caFile: /etc/ca.crt
      headersFile: /etc/headers
evictionWarning:
  ahead: 30s
  calm: 2m
"""


def config_of(text: str) -> AgentConfig:
    return agent_config(check_config("c.yaml", (HEAD + text).encode()))


def test_the_section_is_read() -> None:
    config = config_of(HOOKS)
    assert config.eviction_hooks.webhooks == (
        WebhookHook(name="page-me", url_file="/etc/url", when=("before",), timeout_seconds=2, dry_run=True),
        WebhookHook(
            name="chat", url="https://chat.example/hooks/1?a=b", ca_file="/etc/ca.crt", headers_file="/etc/headers"
        ),
    )
    assert config.eviction_hooks.webhooks[1].when == ("before", "after")
    assert config.eviction_warning.ahead_ns == 30 * NS_PER_S
    assert config.eviction_warning.calm_ns == 120 * NS_PER_S


def test_what_is_shown_is_read_again() -> None:
    config = config_of(HOOKS)
    assert agent_config(read_config("c.yaml", config_text(config).encode())) == config


def webhooks(text: str) -> str:
    return f"evictionHooks: {{webhooks: [{text}]}}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (webhooks("{url: 'https://h'}"), "missing required field"),
        (webhooks("{name: A b, url: 'https://h'}"), "webhooks"),
        (webhooks("{name: a, urll: 'https://h'}"), "no such field; did you mean url?"),
        (webhooks("{name: a, url: 'https://h', timeout: 2s}"), "webhooks[0].timeout: no such field"),
        (webhooks("{name: a, url: 'https://h', timeoutSeconds: 31}"), "must be an integer <= 30"),
        (webhooks("{name: a, url: 'https://h', timeoutSeconds: 0}"), "must be an integer >= 1"),
        (webhooks("{name: a, url: 'https://h', when: [during]}"), "must be one of after, before"),
        (webhooks("{name: a, url: 'https://h', when: []}"), "length >= 1"),
        (webhooks("{name: a, url: 'https://h', when: [before, before]}"), "at most once"),
        (webhooks("{name: a, url: 'https://h'}, {name: a, url: 'https://i'}"), "'a': must be the name of one hook"),
        (webhooks(", ".join(f"{{name: a{n}, url: 'https://h'}}" for n in range(9))), "length <= 8"),
        (webhooks("{name: a}"), "'a': must have one of url and urlFile"),
        (webhooks("{name: a, url: 'https://h', urlFile: /x}"), "'a': must have one of url and urlFile"),
        (webhooks("{name: a, url: chat.example/secret}"), "must be a URL with http:// or https:// and a host"),
        (webhooks("{name: a, url: 'ftp://chat.example'}"), "must be a URL with http:// or https://"),
        (webhooks("{name: a, url: 'https://'}"), "must be a URL with http:// or https://"),
        (webhooks("{name: a, url: 'https://h:99999/'}"), "must be a URL with http:// or https://"),
        (webhooks("{name: a, url: 'https://h/a b'}"), "must be a URL with http:// or https://"),
        (webhooks("{name: a, url: 'https://[::1'}"), "must be a URL with http:// or https://"),
        (webhooks("{name: a, url: 'https://me:secret@h/'}"), "must name no user"),
        (webhooks("{name: a, url: 'http://h/', headersFile: /x}"), "headersFile: '/x': needs an https:// url"),
        (webhooks("{name: a, url: 'http://h/', caFile: /x}"), "caFile: '/x': needs an https:// url"),
        (webhooks("{name: a, url: 'https://h/', caFile: x}"), "caFile"),
        ("evictionHook: {}", "did you mean evictionHooks?"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        config_of(text)
    assert said in str(error.value)
    assert "secret" not in str(error.value)


def test_a_command_is_refused_and_webhooks_are_named() -> None:
    with pytest.raises(ConfigError) as error:
        check_config("c.yaml", (HEAD + "evictionHooks:\n  commands: [{name: a, command: [/x]}]\n").encode())
    value = "[{'name': 'a', 'command': ['/x']}]"
    assert str(error.value) == f"c.yaml:4:3: evictionHooks.commands: {value}: no such field; known are webhooks"


def test_a_misspelled_field_is_placed() -> None:
    with pytest.raises(ConfigError) as error:
        check_config("c.yaml", (HEAD + HOOKS.replace("dryRun", "dryrunn")).encode())
    assert "c.yaml:" in str(error.value)
    assert "did you mean dryRun?" in str(error.value)


def test_doctor_says_what_is_missing(tmp_path: Path) -> None:
    assert eviction_hook_sources(AgentConfig()) == ()
    (tmp_path / "url").write_text("https://chat.example/secret")
    settings = EvictionHookSettings(
        webhooks=(
            WebhookHook(name="chat", url_file=str(tmp_path / "url")),
            WebhookHook(name="ca", url="https://chat.example/secret", ca_file=str(tmp_path / "ca.crt")),
        ),
    )
    chat, authority = eviction_hook_sources(AgentConfig(eviction_hooks=settings))
    assert (chat.signal, chat.works, chat.how) == ("eviction hook chat", True, "posts to its URL")
    assert (authority.works, authority.reason) == (False, f"{tmp_path}/ca.crt: No such file or directory")


def test_without_hooks_there_is_no_sink_and_with_ahead_0_no_warning() -> None:
    plans = OpenPlans("n1", dry_run=True)
    assert open_eviction_hooks(AgentConfig(), plans, JobPages()) is None
    assert open_foresight(AgentConfig(), plans, None) is not None
    assert open_foresight(config_of("evictionWarning: {ahead: 0s}"), plans, None) is None


def test_nothing_of_hooks_is_loaded_where_none_is_set() -> None:
    code = "import sys; import koordebpf.agent.run; print([m for m in sys.modules if 'eviction_hooks' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
