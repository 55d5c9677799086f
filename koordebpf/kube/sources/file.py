"""Pods and configuration out of files: the source that needs no cluster. It reads; `manifest` understands.

Write a file beside the old one and rename it over: a file written in place can be read half, and half a YAML list may
be valid YAML. A file that changes while the agent works is better JSON: it is read in the agent's own loop.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from koordebpf.errors import NOT_GIVEN, ConfigError, unreadable
from koordebpf.kernel.io.regular_file import read_regular_file
from koordebpf.kube.cache.objects import ClusterState
from koordebpf.kube.config_map import CONFIG_MAP, ConfigMapName
from koordebpf.kube.sources.manifest import BadObject, Manifests, parse_manifests
from koordebpf.units import MIB, NS_PER_MS

SUFFIXES: Final = (".yaml", ".yml", ".json")
# File times move with the kernel's tick (4 ms at HZ=250): a second write of the same size within one leaves the stat as
# it was. So what was read is read once more, this much later.
_SETTLE_NS: Final = 100 * NS_PER_MS

_MOST_BYTES: Final = 256 * MIB  # Why: 500 pods of 1.5 MB, what etcd takes, are three times that, and no node's

_Marks = dict[Path, tuple[int, int, int]]


class FileSource:
    """Files, and directories of them, read again when they change.

    Of a file that cannot be parsed the last good state of all stays in force. An object that cannot be read stays as it
    was last good, or is left out. `synced_at_ns` is the last look that found nothing unread; `problems` says why a
    newer content was not taken.
    """

    name = "file"

    def __init__(self, paths: Sequence[Path], config_map: ConfigMapName = CONFIG_MAP) -> None:
        self._paths = tuple(paths)
        self._config_map = config_map
        self._marks: _Marks = {}
        self._texts: dict[str, bytes] = {}
        self._settle_ns: int | None = None
        self._is_good = False
        self._state = ClusterState(version=0, synced_at_ns=0)

    def start(self, wake: Callable[[], None]) -> None:
        """Read all files. `wake` is not used: changes are found by `refresh`, in the caller's own thread.

        Raises:  ConfigError: a file is missing or unusable.
        """
        del wake
        if not self._paths:
            raise ConfigError("file source", NOT_GIVEN, "needs at least one file or directory")
        now_ns = time.monotonic_ns()
        try:
            self._marks = self._read_marks()
            self._apply(self._read(), now_ns)
        except OSError as e:
            raise unreadable(e.filename, e) from e

    def refresh(self, now_ns: int) -> None:
        """Take what changed.

        Cost:    6 µs a file while nothing changed; else what parse_manifests costs.
        """
        try:
            marks = self._read_marks()
            is_new = marks != self._marks
            if is_new or (self._settle_ns is not None and now_ns >= self._settle_ns):
                # The stat was taken before the reading: what is written meanwhile differs from it at the next look.
                self._marks = marks
                texts = self._read()
                self._settle_ns = None
                if is_new or texts != self._texts:
                    self._apply(texts, now_ns)
        except OSError as e:
            self._marks = {}  # even if the very same files come back, they are read again
            self._keep(f"{e.filename}: {e.strerror}; the last good content stays in force")
        except ConfigError as e:
            self._keep(f"{e}; the last good content stays in force")
        if self._is_good:
            self._state = msgspec.structs.replace(self._state, synced_at_ns=now_ns)

    def nudge(self) -> None:
        """Do nothing: files report no new pods."""

    def state(self) -> ClusterState:
        """Return what the files say, or said when they were last good."""
        return self._state

    def close(self) -> None:
        """Do nothing: no thread, no open file."""

    def _read_marks(self) -> _Marks:
        marks: _Marks = {}
        for path in self._paths:
            if path.is_dir():
                with os.scandir(path) as entries:
                    found = sorted(e.name for e in entries if e.name.endswith(SUFFIXES) and not e.name.startswith("."))
                if not found:
                    raise FileNotFoundError(errno.ENOENT, f"no file {', '.join(SUFFIXES)} in it", str(path))
                files = [path / name for name in found]
            else:
                files = [path]
            for file in files:
                seen = file.stat()
                marks[file] = (seen.st_mtime_ns, seen.st_size, seen.st_ino)
        return marks

    def _read(self) -> dict[str, bytes]:
        return {str(path): read_regular_file(path, _MOST_BYTES, follows=True) for path in self._marks}

    def _apply(self, texts: dict[str, bytes], now_ns: int) -> None:
        self._settle_ns = now_ns + _SETTLE_NS
        self._texts = texts
        manifests, problems = _with_last_good(parse_manifests(texts, config_map=self._config_map), self._state)
        self._is_good = True
        is_same = self._state.problems == problems and manifests == _manifests_of(self._state)
        if self._state.version and is_same:
            return
        self._state = ClusterState(
            version=self._state.version + 1,
            synced_at_ns=now_ns,
            pods=manifests.pods,
            pdbs=manifests.pdbs,
            node=manifests.node,
            nodeslo=manifests.nodeslo,
            slo_controller_config=manifests.slo_controller_config,
            topology=manifests.topology,
            cnr=manifests.cnr,
            namespaces=manifests.namespaces,
            problems=problems,
        )

    def _keep(self, problem: str) -> None:
        self._is_good = False
        if self._state.problems != (problem,):
            self._state = msgspec.structs.replace(self._state, version=self._state.version + 1, problems=(problem,))


def _manifests_of(state: ClusterState) -> Manifests:
    return Manifests(
        state.pods,
        state.pdbs,
        state.node,
        state.nodeslo,
        state.slo_controller_config,
        state.topology,
        state.namespaces,
        state.cnr,
    )


_SINGLE: Final = {
    "Node": "node",
    "NodeSLO": "nodeslo",
    "ConfigMap": "slo_controller_config",
    "NodeResourceTopology": "topology",
    "CustomNodeResource": "cnr",
}
_MANY: Final = {"Pod": "pods", "PodDisruptionBudget": "pdbs", "Namespace": "namespaces"}


# In place of each bad object that of `last`, where it has one and no good object is it; and what is wrong with them.
def _with_last_good(found: Manifests, last: ClusterState) -> tuple[Manifests, tuple[str, ...]]:
    problems = []
    for bad in found.bad:
        kept = _kept(bad, found, last)
        if kept is not None:
            found = msgspec.structs.replace(found, **kept)
        held = "is left out" if kept is None else "stays as it was"
        problems.append(f"{bad.error}; this object {held}")
    return msgspec.structs.replace(found, bad=()), tuple(problems)


def _kept(bad: BadObject, found: Manifests, last: ClusterState) -> dict[str, Any] | None:
    if (field := _SINGLE.get(bad.kind)) is not None:
        value = getattr(last, field)
        return None if value is None or getattr(found, field) is not None else {field: value}
    if (field := _MANY.get(bad.kind)) is None or not bad.name:
        return None
    there: tuple[Any, ...] = getattr(found, field) or ()
    known = {(each.metadata.namespace, each.metadata.name) for each in there}
    if (bad.namespace, bad.name) in known:
        return None
    uids = {each.metadata.uid for each in there}
    same = [
        each
        for each in getattr(last, field) or ()
        if (each.metadata.namespace, each.metadata.name) == (bad.namespace, bad.name)
        and not (each.metadata.uid and each.metadata.uid in uids)
    ]
    return {field: (*there, *same)} if same else None
