"""The connection to this node's own kubelet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from koordebpf.configuration.settings import AgentConfig

if TYPE_CHECKING:
    from koordebpf.kube.http.transport import Transport


def open_own_kubelet(config: AgentConfig, url: str) -> Transport:
    """Return a transport to the kubelet at that address, with the credentials that the settings name.

    Raises:  as `koordebpf.kube.http.transport.open_kubelet`.
    """
    from koordebpf.kube.http.transport import SERVICE_ACCOUNT, open_kubelet

    return open_kubelet(
        url,
        config.kubelet_token_file or SERVICE_ACCOUNT / "token",
        config.kubelet_ca_file,
        insecure=config.kubelet_insecure,
    )
