"""Opens the source of pods, Node and NodeSLO that is configured."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.frames import read_by_name
from koordebpf.decision.strategies import may_choose_any, reads_cnr
from koordebpf.errors import NOT_GIVEN, ConfigError
from koordebpf.kube.sources.base import MergedSource, Source
from koordebpf.kube.sources.file import FileSource
from koordebpf.policy.evict.exemptions import ALWAYS_PROTECTED_NAMESPACES
from koordebpf.runner.context import open_own_kubelet
from koordebpf.slo.pods.eviction import may_be_evicted
from koordebpf.state.pods.namespaces import asked_labels, may_replace_label

if TYPE_CHECKING:
    from koordebpf.kube.cache.objects import Pod


# Which pods an agent may ever evict: of their namespaces alone PodDisruptionBudgets are read.


def may_be_victim(config: AgentConfig) -> Callable[[Pod], bool]:
    """Return a function that tells whether a pod may ever be evicted.

    Features of Koordinator choose pods by their labels and priority; plugins may ask for any pod.
    """
    exemptions, is_any = config.eviction.exemptions, may_choose_any(config.feature_gates)

    def may_be(pod: Pod) -> bool:
        if is_any and pod.metadata.namespace not in ALWAYS_PROTECTED_NAMESPACES:
            return True
        return may_be_evicted(pod.metadata.labels) or may_replace_label(exemptions, pod.spec.priority)

    return may_be


# urllib3, and with a kubeconfig the kubernetes package: imported only where something talks to an API server.
def open_source(config: AgentConfig) -> Source:
    """Return where pods, Node and NodeSLO come from; it is not started.

    Raises:  ConfigError: a setting that this source needs is missing.
    """
    if config.source == "file":
        if not config.files:
            raise ConfigError("--pods", NOT_GIVEN, "source file needs at least one file with pods and a NodeSLO")
        if config.executor == "api":
            raise ConfigError("--executor", "api", "needs --source api or kubelet: files know no API server")
        return FileSource(config.files, config.config_map)
    if not config.node_name:
        raise ConfigError("--node-name", NOT_GIVEN, f"source {config.source} needs this node's name")
    keys = read_by_name(config)
    if config.source == "api":
        from koordebpf.kube.http.transport import open_cluster
        from koordebpf.kube.sources.api import ApiSource, Wanted

        wanted = Wanted(
            may_be_evicted=may_be_victim(config),
            namespace_labels=asked_labels(config.eviction.exemptions),
            with_cnr=reads_cnr(config.feature_gates),
            config_map=config.config_map,
            keys=keys,
        )
        return ApiSource(open_cluster(config.kubeconfig, config.kube_context), config.node_name, wanted=wanted)
    from koordebpf.kube.sources.kubelet import KubeletSource

    if not config.kubelet_url:
        raise ConfigError("--kubelet-url", NOT_GIVEN, "source kubelet needs its address, as https://127.0.0.1:10250")
    if not config.files:
        raise ConfigError(
            "--pods", NOT_GIVEN, "source kubelet needs a file with the NodeSLO: the kubelet knows pods only"
        )
    transport = open_own_kubelet(config, config.kubelet_url)
    return MergedSource(
        KubeletSource(transport, config.node_name, keys=keys), FileSource(config.files, config.config_map)
    )
