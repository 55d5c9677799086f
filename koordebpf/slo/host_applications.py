"""spec.hostApplications of a NodeSLO: processes of the host with a cgroup of their own choice.

Source: apis/slo/v1alpha1/host_application.go; the directories as koordlet's util/host_application.go forms them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.slo.overlay import decode_object, member

_LATENCY_SENSITIVE = ("LSE", "LSR", "LS")

# cgroupPath.base → directory below the node's root, for the drivers cgroupfs and systemd.
_BASES = {
    "CgroupRoot": ("", ""),
    "Kubepods": ("kubepods", "kubepods.slice"),
    "KubepodsBurstable": ("kubepods/burstable", "kubepods.slice/kubepods-burstable.slice"),
    "KubepodsBesteffort": ("kubepods/besteffort", "kubepods.slice/kubepods-besteffort.slice"),
}


def host_applications_of(nodeslo_raw: bytes | msgspec.Raw) -> dict[str, str]:
    """Return directory → name of every host application, the directory relative to the node's root cgroup.

    Both drivers' directories are in it; only one of them exists.

    Raises: ConfigError: a value has the wrong type, or a base that Koordinator does not know.
    """
    spec = member(decode_object(nodeslo_raw, "NodeSLO"), "spec", "") or {}
    written = spec.get("hostApplications")
    if written is None:
        return {}
    if not isinstance(written, list):
        raise ConfigError("spec.hostApplications", written, "must be a list")
    found: dict[str, str] = {}
    for index, entry in enumerate(written):
        path = f"spec.hostApplications[{index}]"
        if not isinstance(entry, dict):
            raise ConfigError(path, entry, "must be an object")
        name = _text(entry, "name", path)
        if not name:
            raise ConfigError(f"{path}.name", name, "must not be empty")
        for directory in _directories(entry, name, path):
            found[directory] = name
    return found


def _directories(entry: dict[str, Any], name: str, path: str) -> list[str]:
    cgroup_path = member(entry, "cgroupPath", path)
    if cgroup_path is None:
        qos = _text(entry, "qos", path)
        if qos in _LATENCY_SENSITIVE:
            return [f"host-latency-sensitive/{name}"]
        return [f"host-best-effort/{name}" if qos == "BE" else name]
    base = _text(cgroup_path, "base", f"{path}.cgroupPath") or "CgroupRoot"
    if base not in _BASES:
        raise ConfigError(f"{path}.cgroupPath.base", base, f"must be one of {', '.join(_BASES)}")
    tail = [_text(cgroup_path, key, f"{path}.cgroupPath").strip("/") for key in ("parentDir", "relativePath")]
    return ["/".join(part for part in (root, *tail) if part) for root in _BASES[base]]


def _text(of: dict[str, Any], key: str, path: str) -> str:
    value = of.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ConfigError(f"{path}.{key}", value, "must be a string")
    return value
