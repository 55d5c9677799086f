"""The configuration file, whatever is written into it: a configuration or a ConfigError, and its schema agrees."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import yaml
from hypothesis import given
from hypothesis import strategies as st

from koordebpf.configuration.checked import agent_config, differences
from koordebpf.configuration.file import (
    API_VERSION,
    KIND,
    ConfigProblems,
    config_schema,
    config_text,
    read_config,
)
from koordebpf.configuration.schema import settings
from koordebpf.configuration.settings import AgentConfig
from koordebpf.errors import ConfigError

SCHEMA = jsonschema.Draft202012Validator(config_schema())
PATHS = [setting.path for setting in settings()]
WORDS = ["api", "file", "kubelet", "cgroup", "strict", "none", "kill-be", "evict", "4s", "500ms", "90s", "10m", "", "x"]
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-1, 200),
    st.floats(0, 2),
    st.sampled_from(WORDS),
    st.lists(st.sampled_from(WORDS), max_size=2),
)


def put(body: dict[str, Any], path: str, value: Any) -> None:
    *sections, name = path.split(".")
    for section in sections:
        body = body.setdefault(section, {})
    body[name] = value


def body_of(written: dict[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = {"apiVersion": API_VERSION, "kind": KIND}
    for path, value in written.items():
        put(body, path, value)
    return body


def read(body: dict[str, Any]) -> AgentConfig | None:
    try:
        return agent_config(read_config("f", yaml.safe_dump(body).encode()))
    except ConfigError:
        return None


@given(st.dictionaries(st.sampled_from(PATHS), VALUES, max_size=4))
def test_what_is_taken_is_valid_and_reads_back_from_its_own_text(written: dict[str, Any]) -> None:
    body = body_of(written)
    config = read(body)
    if config is None:
        return
    assert SCHEMA.is_valid(body)
    assert not config.enforce
    assert agent_config(read_config("f", config_text(config).encode())) == config
    assert set(differences(read_config("f", json.dumps(body).encode()))) <= set(written)


@given(st.sampled_from(PATHS), VALUES)
def test_the_schema_takes_no_single_value_that_is_refused_for_its_form(path: str, value: Any) -> None:
    body = body_of({path: value})
    if not SCHEMA.is_valid(body):
        assert read(body) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_a_configuration_or_a_config_error(text: bytes) -> None:
    try:
        agent_config(read_config("f", text))
    except ConfigError as error:
        assert str(error).startswith("f")


@given(
    st.recursive(
        VALUES,
        lambda below: st.dictionaries(
            st.sampled_from([part for path in PATHS for part in path.split(".")] + ["enforce", "no"]), below, max_size=3
        ),
        max_leaves=8,
    )
)
def test_any_shape_is_a_configuration_or_all_its_problems(value: Any) -> None:
    body = {"apiVersion": API_VERSION, "kind": KIND, **(value if isinstance(value, dict) else {"sampling": value})}
    try:
        read_config("f", json.dumps(body).encode())
    except ConfigProblems as error:
        assert all(re.match(r"f(:\d+:\d+)?: ", str(problem)) and problem.rule for problem in error.problems)
        assert len(set(map(str, error.problems))) == len(error.problems)
