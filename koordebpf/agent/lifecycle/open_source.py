"""Opens the source of pods, Node and NodeSLO that is configured."""

from __future__ import annotations

from koordebpf.agent.victims import may_be_victim
from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.pod_keys import read_by_name
from koordebpf.decision.strategies import reads_cnr
from koordebpf.errors import NOT_GIVEN, ConfigError
from koordebpf.kube.sources.base import Source
from koordebpf.kube.sources.file import FileSource
from koordebpf.kube.sources.merged import MergedSource
from koordebpf.runner.own_kubelet import open_own_kubelet
from koordebpf.state.pods.exemptions import asked_labels


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
        return FileSource(config.files)
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
    return MergedSource(KubeletSource(transport, config.node_name, keys=keys), FileSource(config.files))
