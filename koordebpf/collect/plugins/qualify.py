"""Which socket is that of an eviction plugin that may be registered.

Source: katalyst-core pkg/agent/evictionmanager/manager.go ValidatePlugin; k8s.io/kubernetes
pkg/kubelet/pluginmanager/operationexecutor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from koordebpf.collect.plugins.access import PluginAccess
from koordebpf.errors import DecodeError
from koordebpf.kube.clients.grpc import GrpcError, GrpcSocket
from koordebpf.kube.clients.protobuf import decode
from koordebpf.kube.plugins.messages import (
    PLUGIN_MESSAGES,
    PLUGIN_SERVICE,
    PLUGIN_TYPE,
    REGISTRATION_MESSAGES,
    REGISTRATION_SERVICE,
    VERSION,
)
from koordebpf.printable import printable

_INFO_S, _TOKEN_S = 1.0, 10.0  # Why: Katalyst's
_TRY_S = 1.0
_NAME_LENGTH = 100


class Change(NamedTuple):
    """A plugin that is to be called by this socket from now on; None: no more."""

    name: str
    socket: Path | None


class Refusal(Exception):
    """A plugin does not qualify: why, in a sentence."""


def qualified(socket: GrpcSocket, path: Path, taken: Collection[str], access: PluginAccess) -> Change:
    """Return the plugin that answers by a socket, if it may be registered.

    Raises:  Refusal: it may not. GrpcError: it does not answer. DecodeError: what it answers is no such message.
    """
    info = answer(socket, f"{REGISTRATION_SERVICE}/GetInfo", b"", _INFO_S)
    found = decode(REGISTRATION_MESSAGES, "PluginInfo", info)
    name = found["name"]
    if found["type"] != PLUGIN_TYPE:
        raise Refusal(f"its type {printable(found['type'][:_NAME_LENGTH])!r} is not {PLUGIN_TYPE}")
    if not name or len(name) > _NAME_LENGTH or printable(name) != name:
        raise Refusal(f"its name {printable(name[:_NAME_LENGTH])!r} is no name of at most {_NAME_LENGTH} characters")
    if name in taken:
        raise Refusal(f"{name} is a plugin inside this agent")
    if VERSION not in found["supported_versions"]:
        raise Refusal(f"it supports {', '.join(found['supported_versions'][:5]) or 'no version'}, not {VERSION}")
    endpoint = Path(found["endpoint"]) if found["endpoint"] else path
    with contextlib.closing(GrpcSocket(endpoint)) as plugin:
        validation, why = access.validate(name, _token(plugin))
    if validation.is_refused:
        raise Refusal(f"authentication is strict, and {why}")
    return Change(name, endpoint)


# None: it has none, or none that can be read.
def _token(plugin: GrpcSocket) -> str | None:
    try:
        found = answer(plugin, f"{PLUGIN_SERVICE}/GetToken", b"", _TOKEN_S)
        return str(decode(PLUGIN_MESSAGES, "GetTokenResponse", found)["token"])
    except GrpcError as error:
        if error.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
            raise  # it cannot be called at all
        return None
    except DecodeError:
        return None


def answer(socket: GrpcSocket, method: str, message: bytes, timeout_s: float) -> bytes:
    """Return what a method answers.

    Raises:  GrpcError: it does not, in time.
    """
    (found,) = socket.call(method, [message], timeout_s)
    if isinstance(found, GrpcError):
        raise found
    return found


def try_plugin(path: Path, taken: Collection[str], access: PluginAccess) -> Change:
    """Return the plugin that may be registered by a socket and answers a call for its threshold, with no pods.

    Raises:  Refusal: it may not. GrpcError: it does not answer. DecodeError: what it answers is no such message.
    """
    with contextlib.closing(GrpcSocket(path)) as socket:
        found = qualified(socket, path, taken, access)
    assert found.socket is not None
    with contextlib.closing(GrpcSocket(found.socket)) as plugin:
        decode(PLUGIN_MESSAGES, "ThresholdMetResponse", answer(plugin, f"{PLUGIN_SERVICE}/ThresholdMet", b"", _TRY_S))
    return found
