"""Of which pods' namespaces PodDisruptionBudgets are read."""

from __future__ import annotations

from msgspec.structs import replace

from koordebpf.agent.lifecycle.open_source import may_be_victim
from koordebpf.configuration.checked import agent_config
from koordebpf.configuration.settings import AgentConfig
from koordebpf.kube.cache.objects import ObjectMeta, Pod, PodSpec, PodStatus

PLAIN = Pod(ObjectMeta(name="web", namespace="default", uid="u"), PodSpec(priority=0), PodStatus())
BATCH = replace(PLAIN, metadata=replace(PLAIN.metadata, labels={"koordinator.sh/qosClass": "BE"}))
SYSTEM = replace(PLAIN, metadata=replace(PLAIN.metadata, namespace="kube-system"))


def config_of(*, katalyst: bool) -> AgentConfig:
    return agent_config({"source": "api", "node_name": "n1", "feature_gates": {"KatalystEviction": katalyst}})


def test_features_of_koordinator_choose_by_labels() -> None:
    may_be = may_be_victim(config_of(katalyst=False))
    assert [may_be(each) for each in (PLAIN, BATCH, SYSTEM)] == [False, True, False]


def test_katalysts_plugins_may_choose_any_pod_but_the_systems() -> None:
    may_be = may_be_victim(config_of(katalyst=True))
    assert [may_be(each) for each in (PLAIN, BATCH, SYSTEM)] == [True, True, False]
