"""Kubelet's own configuration, from its endpoint /configz."""

from __future__ import annotations

from koordebpf.kube.cache.kubelet_config import KubeletConfig, decode_configz
from koordebpf.kube.http.transport import Transport
from koordebpf.kube.malformed import MALFORMED, malformed


def kubelet_config(transport: Transport, *, timeout_s: float) -> KubeletConfig:
    """Ask kubelet for the configuration that it runs with.

    Needs:   RBAC get on nodes/configz. Kubelet asks for this right since Kubernetes 1.32 behind its feature gate
             KubeletFineGrainedAuthz, on by default since 1.33; before it takes nodes/proxy alone, which is a right to
             do anything in any container of the node.
    Raises:  KubeError and its kin. KubeDenied: without that right.
    """
    body = transport.get("/configz", verb="get", resource="nodes/configz", timeout_s=timeout_s)
    try:
        return decode_configz(body)
    except MALFORMED as e:
        raise malformed("nodes/configz", "the answer is not kubelet's configuration", e) from e
