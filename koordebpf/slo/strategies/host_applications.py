"""spec.hostApplications of a NodeSLO: processes of the host with a cgroup of their own choice.

Source: apis/slo/v1alpha1/host_application.go; the directories as koordlet's util/host_application.go forms them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.slo.convert import converted

_LATENCY_SENSITIVE = ("LSE", "LSR", "LS")

# cgroupPath.base → directory below the node's root, for the drivers cgroupfs and systemd.
_BASES = {
    "CgroupRoot": ("", ""),
    "Kubepods": ("kubepods", "kubepods.slice"),
    "KubepodsBurstable": ("kubepods/burstable", "kubepods.slice/kubepods-burstable.slice"),
    "KubepodsBesteffort": ("kubepods/besteffort", "kubepods.slice/kubepods-besteffort.slice"),
}
_OF_PODS = frozenset(directory for both in _BASES.values() for directory in both if directory)


class CgroupPath(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a host application's cgroup lies: base / parentDir / relativePath."""

    base: str = ""
    parentDir: str = ""
    relativePath: str = ""


class HostApplication(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process of the host with a cgroup and a QoS class."""

    name: str = ""
    priority: str | None = None  # a class of priority, koord-prod …
    qos: str | None = None
    cgroupPath: CgroupPath | None = None
    strategy: dict[str, Any] | None = None


def host_applications(written: Any, path: str) -> tuple[HostApplication, ...]:
    """Return the list at `path`.

    Raises: ConfigError: a value has the wrong type, a base is one that Koordinator does not know, a name is missing, or
            the directory is one of kubelet's own: all pods would be the application.
    """
    if not isinstance(written, list):
        raise ConfigError(path, written, "must be a list")
    entries = tuple(converted(entry, HostApplication, f"{path}[{index}]") for index, entry in enumerate(written))
    for index, entry in enumerate(entries):
        if not entry.name:
            raise ConfigError(f"{path}[{index}].name", entry.name, "must not be empty")
        base = entry.cgroupPath.base if entry.cgroupPath else ""
        if base and base not in _BASES:
            raise ConfigError(f"{path}[{index}].cgroupPath.base", base, f"must be one of {', '.join(_BASES)}")
        for directory in _directories(entry):
            if directory in _OF_PODS:
                raise ConfigError(f"{path}[{index}].cgroupPath", directory, "must not be a directory that pods lie in")
    return entries


def host_directories(applications: Iterable[HostApplication]) -> dict[str, str]:
    """Return directory → name of every host application, the directory relative to the node's root cgroup.

    Both drivers' directories are in it; only one of them exists.
    """
    return {directory: entry.name for entry in applications for directory in _directories(entry)}


def _directories(entry: HostApplication) -> list[str]:
    if entry.cgroupPath is None:
        if entry.qos in _LATENCY_SENSITIVE:
            return [f"host-latency-sensitive/{entry.name}"]
        return [f"host-best-effort/{entry.name}" if entry.qos == "BE" else entry.name]
    tail = [entry.cgroupPath.parentDir.strip("/"), entry.cgroupPath.relativePath.strip("/")]
    roots = _BASES[entry.cgroupPath.base or "CgroupRoot"]
    return list(dict.fromkeys("/".join(part for part in (root, *tail) if part) for root in roots))
