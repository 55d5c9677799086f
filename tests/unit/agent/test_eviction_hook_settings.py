"""Section `evictionHooks` and `evictionWarning` of the configuration, and that nothing is loaded where none is set."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from koordebpf.act.eviction_hooks.settings import CommandHook, EvictionHookSettings, WebhookHook
from koordebpf.agent.config.file import check_config, config_text, read_config
from koordebpf.agent.config.settings import AgentConfig, agent_config
from koordebpf.agent.warning.open import open_eviction_hooks, open_foresight
from koordebpf.errors import ConfigError
from koordebpf.report.beside import Beside
from koordebpf.store.open_plans import OpenPlans
from koordebpf.tools.doctor_eviction_hooks import eviction_hook_sources
from koordebpf.units import NS_PER_S

ROOT = Path(__file__).parents[3]
HEAD = "apiVersion: koordebpf.io/v1alpha1\nkind: AgentConfiguration\n"
HOOKS = """
evictionHooks:
  commands:
    - name: page-me
      command: [/opt/notify, --json]
      when: [before]
      timeoutSeconds: 2
      dryRun: true
  webhooks:
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
    assert config.eviction_hooks.commands == (
        CommandHook(
            name="page-me", command=("/opt/notify", "--json"), when=("before",), timeout_seconds=2, dry_run=True
        ),
    )
    assert config.eviction_hooks.webhooks == (
        WebhookHook(
            name="chat", url="https://chat.example/hooks/1?a=b", ca_file="/etc/ca.crt", headers_file="/etc/headers"
        ),
    )
    assert config.eviction_hooks.webhooks[0].when == ("before", "after")
    assert config.eviction_warning.ahead_ns == 30 * NS_PER_S
    assert config.eviction_warning.calm_ns == 120 * NS_PER_S


def test_what_is_shown_is_read_again() -> None:
    config = config_of(HOOKS)
    assert agent_config(read_config("c.yaml", config_text(config).encode())) == config


def commands(text: str) -> str:
    return f"evictionHooks: {{commands: [{text}]}}"


def webhooks(text: str) -> str:
    return f"evictionHooks: {{webhooks: [{text}]}}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (commands("{name: a, command: [notify]}"), "'notify': must be an absolute path; no shell is run"),
        (commands("{name: a, command: []}"), "length >= 1"),
        (commands("{name: a}"), "missing required field"),
        (commands("{name: A b, command: [/x]}"), "commands"),
        (commands("{name: a, comand: [/x]}"), "no such field; did you mean command?"),
        (commands("{name: a, command: [/x], timeout: 2s}"), "commands[0].timeout: no such field"),
        (commands("{name: a, command: [/x], timeoutSeconds: 31}"), "must be an integer <= 30"),
        (commands("{name: a, command: [/x], timeoutSeconds: 0}"), "must be an integer >= 1"),
        (commands("{name: a, command: [/x], when: [during]}"), "must be one of after, before"),
        (commands("{name: a, command: [/x], when: []}"), "length >= 1"),
        (commands("{name: a, command: [/x], when: [before, before]}"), "at most once"),
        (commands('{name: a, command: [/x, "a\\0b"]}'), "must have no NUL"),
        (commands(f"{{name: a, command: [/x, {'y' * 9000}]}}"), "8192 bytes or less"),
        (commands("{name: a, command: [/x]}, {name: a, command: [/y]}"), "'a': must be the name of one hook"),
        (commands(", ".join(f"{{name: a{n}, command: [/x]}}" for n in range(9))), "commands"),
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


def test_nine_hooks_in_all_are_too_many() -> None:
    five = ", ".join(f"{{name: a{n}, command: [/x]}}" for n in range(5))
    four = ", ".join(f"{{name: b{n}, url: 'https://h/'}}" for n in range(4))
    with pytest.raises(ConfigError, match="must be 8 or less in all"):
        config_of(f"evictionHooks: {{commands: [{five}], webhooks: [{four}]}}")


def test_a_misspelled_field_is_placed() -> None:
    with pytest.raises(ConfigError) as error:
        check_config("c.yaml", (HEAD + HOOKS.replace("dryRun", "dryrunn")).encode())
    assert "c.yaml:" in str(error.value)
    assert "did you mean dryRun?" in str(error.value)


def test_doctor_says_what_is_missing(tmp_path: Path) -> None:
    assert eviction_hook_sources(AgentConfig()) == ()
    (tmp_path / "url").write_text("https://chat.example/secret")
    settings = EvictionHookSettings(
        commands=(
            CommandHook(name="there", command=("/bin/true",)),
            CommandHook(name="gone", command=(str(tmp_path / "gone"),)),
        ),
        webhooks=(
            WebhookHook(name="chat", url_file=str(tmp_path / "url")),
            WebhookHook(name="ca", url="https://chat.example/secret", ca_file=str(tmp_path / "ca.crt")),
        ),
    )
    there, gone, chat, authority = eviction_hook_sources(AgentConfig(eviction_hooks=settings))
    assert (there.signal, there.works, there.how) == ("eviction hook there", True, "runs /bin/true")
    assert (gone.works, gone.reason) == (False, f"{tmp_path}/gone: No such file or directory")
    assert (chat.works, chat.how) == (True, "posts to its URL")
    assert (authority.works, authority.reason) == (False, f"{tmp_path}/ca.crt: No such file or directory")


def test_without_hooks_there_is_no_sink_and_with_ahead_0_no_warning() -> None:
    plans = OpenPlans("n1", dry_run=True)
    assert open_eviction_hooks(AgentConfig(), plans, Beside()) is None
    assert open_foresight(AgentConfig(), plans, None) is not None
    assert open_foresight(config_of("evictionWarning: {ahead: 0s}"), plans, None) is None


def test_nothing_of_hooks_is_loaded_where_none_is_set() -> None:
    code = (
        "import sys; import koordebpf.agent.run;"
        "print([m for m in sys.modules if 'eviction_hooks' in m and 'settings' not in m or m == 'subprocess_'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "['koordebpf.act.eviction_hooks']"
