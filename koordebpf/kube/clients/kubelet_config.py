"""Kubelet's own configuration, from its endpoint /configz.

Source: k8s.io/kubelet config/v1beta1, KubeletConfiguration.
"""

from __future__ import annotations

import msgspec

from koordebpf.kube.http.transport import Transport
from koordebpf.kube.malformed import MALFORMED, malformed


class KubeletConfig(msgspec.Struct, frozen=True, omit_defaults=True):
    """KubeletConfiguration, spelled as the API spells it; quantities stay as written."""

    cpuManagerPolicy: str = ""
    cpuManagerPolicyOptions: dict[str, str] | None = None
    topologyManagerPolicy: str = ""
    topologyManagerScope: str = ""
    reservedSystemCPUs: str = ""
    kubeReserved: dict[str, str] | None = None
    systemReserved: dict[str, str] | None = None


class _Configz(msgspec.Struct, frozen=True):
    kubeletconfig: KubeletConfig


def decode_configz(body: bytes) -> KubeletConfig:
    """Return what kubelet's /configz answers.

    Raises:  msgspec.DecodeError: it is no such answer.
    """
    return msgspec.json.decode(body, type=_Configz).kubeletconfig


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
