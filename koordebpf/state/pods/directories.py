"""Directories of pods and containers: what runtime hooks and other strategies decide from. Values only."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koordebpf.slo.strategies.resource_qos import ResourceQOSStrategy


class PodDirectory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """The directory of a pod's own level, and those of its containers by their id. Paths are below the mount."""

    uid: str
    path: str
    containers: Mapping[str, str] = {}


class ApplicationDirectory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """The directory of a host application, and its class."""

    name: str
    path: str
    qos: str | None = None


class HooksMeasured(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What hooks decide from, of one moment; a round without it decides nothing of them.

    `directories`   of the Kubernetes QoS classes, by class; Guaranteed has that of all pods.
    `applications`  of the host that have a directory.
    `online`        CPUs that are online.
    `qos`           resourceQOSStrategy in force; None: there is no NodeSLO.
    `has_bvt`       this kernel has cpu.bvt_warp_ns; `has_idle`: cpu.idle.
    """

    pods: tuple[PodDirectory, ...] = ()
    directories: Mapping[str, str] = {}
    applications: tuple[ApplicationDirectory, ...] = ()
    online: tuple[int, ...] = ()
    qos: ResourceQOSStrategy | None = None
    has_bvt: bool = False
    has_idle: bool = False
