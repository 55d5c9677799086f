"""Which ConfigMap is read, by what installations call it."""

from __future__ import annotations

import json

import pytest

from koordebpf.configuration.checked import agent_config
from koordebpf.configuration.file import read_config
from koordebpf.configuration.settings import AgentConfig
from koordebpf.errors import ConfigError
from koordebpf.kube.config_map import CONFIG_MAP, ConfigMapName, named_config_map, parse_config_map
from koordebpf.kube.sources.manifest import parse_manifests

ACK = ConfigMapName("ack-slo-config", "kube-system")


def manifest(name: str, namespace: str | None) -> dict[str, bytes]:
    meta = {"name": name} | ({"namespace": namespace} if namespace else {})
    return {"cm.json": json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {}}).encode()}


def test_koordinators_own_is_the_default() -> None:
    assert str(CONFIG_MAP) == "koordinator-system/slo-controller-config"
    assert CONFIG_MAP.path == "/api/v1/namespaces/koordinator-system/configmaps/slo-controller-config"
    assert AgentConfig().config_map == CONFIG_MAP


@pytest.mark.parametrize(
    ("text", "expected"),
    [("kube-system/ack-slo-config", ACK), ("ack-slo-config", ConfigMapName("ack-slo-config")), ("a.b", None)],
)
def test_an_option_names_it(text: str, expected: ConfigMapName | None) -> None:
    assert parse_config_map(text, "--config-map") == (expected or ConfigMapName("a.b"))


@pytest.mark.parametrize("text", ["", "/", "a/", "/a", "a/b/c", "A", "a b", "../a", "a/..", "x" * 254, "a,b=c"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^--config-map: .*: must be a name of Kubernetes'"):
        parse_config_map(text, "--config-map")


def test_one_of_the_two_alone() -> None:
    assert named_config_map(None, "kube-system", "x") == ConfigMapName(namespace="kube-system")
    assert named_config_map("a", None, "x") == ConfigMapName("a")


def test_the_file_of_an_agent_names_it() -> None:
    text = b"""
apiVersion: koordebpf.io/v1alpha1
kind: AgentConfiguration
slo: {configMap: {name: ack-slo-config, namespace: kube-system}}
"""
    assert agent_config(read_config("a.yaml", text)).config_map == ACK
    with pytest.raises(ConfigError, match=r"slo\.configMap\.name: 'A_b'"):
        read_config("a.yaml", text.replace(b"ack-slo-config", b"A_b"))


@pytest.mark.parametrize(
    ("name", "namespace", "any_namespace", "is_read"),
    [
        ("ack-slo-config", "kube-system", True, True),
        ("ack-slo-config", "elsewhere", True, True),
        ("ack-slo-config", None, True, True),
        ("ack-slo-config", "elsewhere", False, False),
        ("ack-slo-config", "kube-system", False, True),
        ("slo-controller-config", "koordinator-system", True, False),
    ],
)
def test_a_file_has_it(name: str, namespace: str | None, any_namespace: bool, is_read: bool) -> None:
    texts = manifest(name, namespace)
    found = parse_manifests(texts, among_others=True, config_map=ACK, any_namespace=any_namespace)
    assert (found.slo_controller_config == {}) is is_read
    assert found.other_config_maps == (() if is_read else (f"{namespace}/{name}",))
    if not is_read:
        with pytest.raises(ConfigError, match=rf"ConfigMap {namespace}/{name}': must be kube-system/ack-slo-config"):
            parse_manifests(texts, config_map=ACK, any_namespace=any_namespace)
