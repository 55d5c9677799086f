"""Finds eviction plugins by their sockets, as the kubelet's plugin watcher does, and registers those that qualify.

A socket is asked who serves it. A plugin that qualifies is called from then on, and learns whether it was registered. A
socket that is replaced, or whose plugin does not answer, is asked again, later each time. Of two plugins with one name
the later one is called; the earlier one is asked again once no process listens at the other's socket.

Everything runs beside the loop, and each socket is asked in a thread of its own: one that is silent until its deadline
keeps neither another nor the loop waiting. So many are asked at each look that 1,000 new ones are asked within half a
minute, and those never asked come first.

Source: k8s.io/kubernetes pkg/kubelet/pluginmanager; katalyst-core cmd/katalyst-agent/app/agent/eviction.go.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import socket
import stat
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple

from koordebpf.errors import ConfigError, DecodeError
from koordebpf.kernel.io.worker import Supervisor
from koordebpf.kube.clients.grpc import GrpcError, GrpcSocket
from koordebpf.kube.clients.protobuf import decode, encode
from koordebpf.kube.http.refusal import Backoff
from koordebpf.kube.plugins.messages import (
    PLUGIN_MESSAGES,
    PLUGIN_SERVICE,
    PLUGIN_TYPE,
    REGISTRATION_MESSAGES,
    REGISTRATION_SERVICE,
    VERSION,
)
from koordebpf.printable import printable
from koordebpf.slo.katalyst_access import AccessSettings, Rules, Validation, judge, parse_rules

_MOST_SOCKETS = 1_000  # Why: a directory that fills up must not make the agent ask for ever
_MOST_ENTRIES = 2_000  # Why: nor look for ever, once a second; plugins have a socket each, and a directory for some
log = logging.getLogger(__name__)
_FILE_BYTES = 1 << 20
_MOST_OUTCOMES = 500  # Why: plugins name themselves, and users too; more are counted together
_OTHERS = "others"
_INFO_S, _TOKEN_S = 1.0, 10.0  # Why: Katalyst's
_TRY_S = 1.0
_NAME_LENGTH = 100
LOOK_S = 1.0  # Why: as often as the kubelet reconciles
_NOTIFY_S = 5.0  # Why: Katalyst's
_CAP_S = 60.0
_BEGIN = 32  # sockets at each look. Why: a connection takes 2 ms of CPU, which the loop's thread shares
_CLOSE_S = 1.0


def folder_problem(folder: Path) -> str | None:
    """Return why no plugin can put its socket there; None: it is a directory, or a plugin may make it."""
    try:
        is_folder = stat.S_ISDIR(folder.stat().st_mode)
    except FileNotFoundError:
        return "must be a directory: it is a link that leads nowhere" if folder.is_symlink() else None
    except OSError as error:
        return error.strerror
    return None if is_folder else "must be a directory"


def sockets_below(folder: Path) -> dict[Path, tuple[int, int]]:
    """Return the sockets below a directory, with what tells one from another of the same name; none: it is not there.

    Directories below count too, those near its top first; what begins with a dot does not, nor does what a link leads
    to. Of more than 2,000 entries the first count.

    Cost:    10 µs without the directory, 10 ms at most.
    """
    found: dict[Path, tuple[int, int]] = {}
    waiting = deque([folder])
    left = _MOST_ENTRIES
    while waiting and left > 0:
        for entry in _entries(waiting.popleft(), left):
            left -= 1
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                waiting.append(Path(entry.path))
            elif identity := _identity(entry):
                found[Path(entry.path)] = identity
                if len(found) >= _MOST_SOCKETS:
                    return found
    return found


# A directory that is removed meanwhile, or that may not be read, has none.
def _entries(directory: Path, most: int) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(itertools.islice(entries, most))
    except OSError:
        return []


# Of a link this is the link's own, which is no socket.
def _identity(entry: os.DirEntry[str]) -> tuple[int, int] | None:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return None
    return (status.st_ino, status.st_mtime_ns) if stat.S_ISSOCK(status.st_mode) else None


# Judges the tokens of plugins that want to register, and counts the outcomes.


class PluginAccess:
    """Who may register, as the file says now. Called from any thread.

    Args:
        settings: how plugins are judged.
    """

    def __init__(self, settings: AccessSettings = AccessSettings()) -> None:  # noqa: B008 - frozen
        self._settings = settings
        self._lock = threading.Lock()
        self._counts: Counter[Validation] = Counter()

    @property
    def validations(self) -> dict[Validation, int]:
        """How often each outcome was seen: what Katalyst's metric eviction_plugin_validate counts."""
        with self._lock:
            return dict(self._counts)

    def validate(self, name: str, token: str | None) -> tuple[Validation, str]:
        """Judge a plugin by what GetToken answered; return the outcome, and why it is not valid.

        A file that cannot be used makes every plugin fail that it would be needed for.
        """
        needs_file = self._settings.auth_type != "Insecure" or self._settings.access_control_type != "insecure"
        problem = ""
        rules = Rules()
        if needs_file:
            try:
                rules = self._rules()
            except ConfigError as error:
                problem = str(error)
        validation, why = judge(name, token, self._settings, rules)
        self._count(validation)
        if not validation.is_valid and problem:
            why = f"{why} ({problem})"
        if not validation.is_valid and not validation.is_refused:
            log.warning("plugin %s is accepted though %s", name, why)
        return validation, why

    def _rules(self) -> Rules:
        path = self._settings.file
        if not path:
            raise ConfigError("eviction.katalyst.access.file", path, "must name a file with users and permissions")
        try:
            with Path(path).open("rb") as file:
                raw = file.read(_FILE_BYTES + 1)
        except OSError as error:
            raise ConfigError(path, error.strerror, "must be a readable file") from error
        if len(raw) > _FILE_BYTES:
            raise ConfigError(path, len(raw), f"must have at most {_FILE_BYTES} bytes")
        return parse_rules(path, raw)

    def _count(self, validation: Validation) -> None:
        with self._lock:
            if validation not in self._counts and len(self._counts) >= _MOST_OUTCOMES:
                user = validation.user if validation.user in ("anonymous", "unknown") else _OTHERS
                validation = Validation(_OTHERS, validation.is_strict, validation.reason, user)
            self._counts[validation] += 1


# Which socket is that of an eviction plugin that may be registered.
#
# Source: katalyst-core pkg/agent/evictionmanager/manager.go ValidatePlugin; k8s.io/kubernetes
# pkg/kubelet/pluginmanager/operationexecutor.


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


# The sockets of the directory, and who is registered.


class _Socket:
    """One socket that was seen: which file it is, and what became of asking it."""

    def __init__(self, identity: tuple[int, int], first_s: float) -> None:
        self.identity = identity
        self.name: str | None = None  # of the plugin that is registered by it …
        self.endpoint: Path | None = None  # … and where that is called
        self.lost: str | None = None  # the name that a plugin by another socket has taken from it
        self.problem: str | None = None
        self.backoff = Backoff(first_s, _CAP_S)
        self.due_s = 0.0
        self.is_asked = False


class PluginRegistry:
    """The sockets below a directory, looked at again and again.

    Args:
        folder: where plugins put their sockets; one that is not there is looked for again.
        taken: names that no plugin outside may have.
        wake: is called from another thread when `poll` has something.
        access: who may register; None: everyone, as Katalyst's default has it.
        look_s: between two looks, and at first until a socket is asked again.
    """

    def __init__(
        self,
        folder: Path,
        taken: Collection[str],
        wake: Callable[[], None],
        access: PluginAccess | None = None,
        *,
        look_s: float = LOOK_S,
    ) -> None:
        self._folder = folder
        self._access = access or PluginAccess()
        self._taken = frozenset(taken)
        self._wake = wake
        self._look_s = look_s
        self._sockets: dict[Path, _Socket] = {}
        self._lock = threading.Lock()
        self._changes: SimpleQueue[Change] = SimpleQueue()
        self._ends = threading.Event()
        self._supervisor = Supervisor("plugin-registry")
        self._asking = Supervisor("plugin-asking")
        self._thread = self._supervisor.thread(self._run)
        self._thread.start()

    def poll(self) -> list[Change]:
        """Return what has changed since the last call, in order."""
        changes: list[Change] = []
        while True:
            try:
                changes.append(self._changes.get_nowait())
            except Empty:
                return changes

    @property
    def problems(self) -> dict[str, str]:
        """Why sockets are not registered, by their path."""
        with self._lock:
            return {str(path): each.problem for path, each in self._sockets.items() if each.problem is not None}

    @property
    def validations(self) -> dict[Validation, int]:
        """How often plugins that asked for registration were valid, or not and why."""
        return self._access.validations

    def close(self) -> None:
        """Ask no socket any more; a call that is open ends by its deadline."""
        self._ends.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while not self._ends.wait(self._look_s):
            self._supervisor.call(self._list_sockets)

    def _list_sockets(self) -> None:
        try:
            self._compare(sockets_below(self._folder))
        except OSError as error:
            log.debug("%s: %s", self._folder, error)

    def _compare(self, there: dict[Path, tuple[int, int]]) -> None:
        now_s = time.monotonic()
        with self._lock:
            for path, known in list(self._sockets.items()):
                if there.get(path) != known.identity:
                    del self._sockets[path]
                    self._leaves(known.name)
            for path, identity in there.items():
                self._sockets.setdefault(path, _Socket(identity, self._look_s))
            self._return_names()
            due = [
                (known.due_s, path)
                for path, known in self._sockets.items()
                if known.name is None and known.lost is None and not known.is_asked and now_s >= known.due_s
            ]
            for _, path in sorted(due)[:_BEGIN]:
                known = self._sockets[path]
                known.is_asked = True
                self._asking.thread(partial(self._ask, path, known)).start()

    # A plugin that lost its name may have it again once the one that took it is gone, or its process is.
    def _return_names(self) -> None:
        losers = [each for each in self._sockets.values() if each.lost is not None]
        for name in {each.lost for each in losers}:
            holder = next((each for each in self._sockets.values() if each.name == name), None)
            if holder is not None and _is_served(holder.endpoint):
                continue
            if holder is not None:
                holder.name, holder.due_s = None, time.monotonic() + holder.backoff.next_s()
                self._leaves(name)
            for each in losers:
                if each.lost == name:
                    each.lost, each.due_s = None, 0.0

    def _leaves(self, name: str | None) -> None:
        if name is not None and not any(each.name == name for each in self._sockets.values()):
            log.info("plugin %s is registered no more", name)
            self._changes.put(Change(name, None))
            self._wake()

    def _ask(self, path: Path, known: _Socket) -> None:
        try:
            self._adopt(path, known, self._registered(path))
        except Exception as error:
            with self._lock:
                is_news = known.problem != str(error)
                known.name, known.problem, known.is_asked = None, str(error), False
                known.due_s = time.monotonic() + known.backoff.next_s()
            if is_news:
                log.warning("no plugin is registered by %s: %s", printable(str(path)), error)

    def _adopt(self, path: Path, known: _Socket, change: Change) -> None:
        with self._lock:
            known.name, known.endpoint, known.problem, known.is_asked = change.name, change.socket, None, False
            is_there = self._sockets.get(path) is known
            for other in self._sockets.values():
                if other is not known and other.name == change.name:
                    other.name, other.lost = None, change.name
        if is_there:
            log.info("plugin %s is registered by %s", change.name, printable(str(path)))
            self._changes.put(change)
            self._wake()

    def _registered(self, path: Path) -> Change:
        with contextlib.closing(GrpcSocket(path)) as asked:
            try:
                change = qualified(asked, path, self._taken, self._access)
            except Refusal as refusal:
                _notify(asked, str(refusal))
                raise
            _notify(asked, "")
            return change


def _notify(asked: GrpcSocket, error: str) -> None:
    status = {"plugin_registered": not error, "error": error}
    message = encode(REGISTRATION_MESSAGES, "RegistrationStatus", status)
    try:
        answer(asked, f"{REGISTRATION_SERVICE}/NotifyRegistrationStatus", message, _NOTIFY_S)
    except (GrpcError, DecodeError) as failed:
        raise Refusal(f"it did not take the answer to its registration: {failed}") from failed


# A process listens there. One whose queue of connections is full does, too.
def _is_served(endpoint: Path | None) -> bool:
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as made:
        made.setblocking(False)
        try:
            made.connect(str(endpoint))
        except BlockingIOError:
            return True
        except OSError:
            return False
    return True
