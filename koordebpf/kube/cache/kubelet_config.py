"""The fields of kubelet's configuration that say how it places containers on CPUs and NUMA nodes.

Source: k8s.io/kubelet config/v1beta1 types.go, KubeletConfiguration; /configz has it under `kubeletconfig`.
"""

from __future__ import annotations

import msgspec


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
