"""The choice among the backends, by trying: co-re, then bcc, then files. Why one was passed over is kept."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Literal

from koordebpf.errors import ConfigError, SupportError
from koordebpf.kernel.backends.bcc import BccSignals
from koordebpf.kernel.backends.co_re import KernelSignals
from koordebpf.kernel.backends.files import FilesSignals
from koordebpf.kernel.bcc.process import TIME_LIMIT_S
from koordebpf.kernel.signals import Backend, BackendName, LayoutCheck, SignalRequest, SignalSource

WantedBackend = Literal["auto", "co-re", "bcc", "files"]

WANTED: tuple[WantedBackend, ...] = ("auto", "co-re", "bcc", "files")
BACKEND_VARIABLE = "KOORDEBPF_BACKEND"

_ORDER: tuple[BackendName, ...] = ("co-re", "bcc", "files")
# Why 60 s: compiling takes 3 s of CPU, 30 s on a machine that is in trouble; longer no node is to stay unwatched while
# files could do it. Who asks for bcc by name waits longer.
_PATIENCE_S = 60.0
_BACKEND = "backend "  # in a source: one that was passed over
# They tell of no cgroup, or what its files tell, too: files that are watched are better than these alone.
_NOT_ENOUGH = frozenset({"usage of all cgroups in one pass", "kswapd activity"})


def wanted_backend(given: str | None = None, environ: Mapping[str, str] = os.environ) -> WantedBackend:
    """Return which backend is wanted: as given, else as KOORDEBPF_BACKEND says, else auto.

    Raises:  ConfigError: there is no such backend.
    """
    value = given or environ.get(BACKEND_VARIABLE) or "auto"
    for known in WANTED:
        if value == known:
            return known
    raise ConfigError("--backend" if given else BACKEND_VARIABLE, value, f"must be one of {', '.join(WANTED)}")


def open_signals(request: SignalRequest, check_layout: LayoutCheck, wanted: WantedBackend = "auto") -> Backend:
    """Return the best backend that works here, or the one that is wanted; nothing of those that failed stays attached.

    The first of its `sources` are those that were passed over, named `backend co-re`, with the reason.

    Raises:  SupportError: the wanted one does not work here; for `auto`: not even files can be read.
    """
    passed_over: list[SignalSource] = []
    for name in _ORDER if wanted == "auto" else (wanted,):
        try:
            backend = _open(name, request, check_layout, _PATIENCE_S if wanted == "auto" else TIME_LIMIT_S)
        except SupportError as error:
            if wanted != "auto" or name == _ORDER[-1]:
                raise
            passed_over.append(
                SignalSource(
                    f"{_BACKEND}{name}",
                    "",
                    False,
                    f"{error.feature}: {error.reason}",
                    error.remedy,
                    "the next best is taken",
                )
            )
            continue
        backend.sources[:0] = passed_over
        return backend
    raise AssertionError("the last backend either works or raises")


def passed_over_sentence(backend: Backend) -> str:
    """Return why no better backend is in use and what to do about it; empty: none was tried in vain."""
    over = [source for source in backend.sources if source.signal.startswith(_BACKEND)]
    if not over:
        return ""
    reasons = "; ".join(f"no {source.signal.removeprefix(_BACKEND)} ({source.reason})" for source in over)
    return f"{reasons}. {over[0].remedy.rstrip('.')}"


def _open(name: BackendName, request: SignalRequest, check_layout: LayoutCheck, patience_s: float) -> Backend:
    if name == "files":
        return FilesSignals(request)
    backend = KernelSignals(request, check_layout) if name == "co-re" else BccSignals(request, check_layout, patience_s)
    # A backend that leaves out one program is better than none; one that hears nothing is none.
    heard = {source.signal for source in backend.sources if source.works}
    if backend.fileno() is None or heard <= _NOT_ENOUGH:
        backend.close()
        broken = next(source for source in backend.sources if not source.works)
        raise SupportError(f"BPF programs ({name})", broken.reason, broken.remedy)
    return backend
