"""Whether a container runtime would take the agent's NRI plugin on this host; nothing is registered."""

from __future__ import annotations

import socket

from koordebpf.configuration.settings import AgentConfig
from koordebpf.decision.strategies import HOOK_GATES
from koordebpf.errors import os_reason
from koordebpf.kernel.signals.interface import SignalSource

_NAME = "NRI"
_COST = "containers are adjusted by the reconciler, up to 10 s after their start"
_CONNECT_S = 2.0


def nri_sources(config: AgentConfig) -> tuple[SignalSource, ...]:
    """Return one line where `nri.enabled` is set; () where it is not."""
    settings = config.nri
    if not settings.enabled:
        return ()
    if not any(config.feature_gates.get(gate) for gate in HOOK_GATES):
        remedy = f"Switch one on in featureGates: {', '.join(sorted(HOOK_GATES))}."
        return (SignalSource(_NAME, "", False, "no runtime hook's feature gate is on", remedy, _COST),)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trunk:
        trunk.settimeout(_CONNECT_S)
        try:
            trunk.connect(settings.socket)
        except (FileNotFoundError, ConnectionRefusedError):
            remedy = (
                "Enable NRI in the runtime: containerd 1.7 has disable = false under"
                ' [plugins."io.containerd.nri.v1.nri"], later ones have it on, CRI-O has enable_nri = true; and mount'
                " the socket's directory into the pod."
            )
            return (SignalSource(_NAME, "", False, f"no runtime listens at {settings.socket}", remedy, _COST),)
        except OSError as error:
            reason = f"{settings.socket}: {os_reason(error)}"
            return (SignalSource(_NAME, "", False, reason, "Run as root, as the runtime does.", _COST),)
    return (SignalSource(_NAME, f"a runtime listens at {settings.socket}", True),)
