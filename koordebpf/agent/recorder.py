"""Opens the recorder that the settings ask for."""

from __future__ import annotations

import importlib.util
import logging
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from koordebpf.collect.scope import NodeScope
from koordebpf.configuration.settings import AgentConfig
from koordebpf.errors import SupportError
from koordebpf.store.recorder.settings import RecorderSettings
from koordebpf.units import GIB, MIB

if TYPE_CHECKING:
    from koordebpf.store.recorder.recorder import Recorder, Store

log = logging.getLogger("koordebpf")

IN_MEMORY_BYTES = 4 * MIB
_FILE_BYTES = GIB
_READER_S = 5.0  # Why: a person who starts the reader after it; the agent does not run meanwhile
NOT_RECORDED = RecorderSettings(folder=None)


def open_recorder(config: AgentConfig, scope: NodeScope, node: str) -> Recorder | None:
    """Return the recorder; None: nothing is recorded. The ring's folder is opened later, by the thread that writes.

    Raises:  ConfigError: `recorder.file` cannot be written. SupportError: it is wanted, and zstandard
        is not installed; without a file the agent runs without a recorder then, and says so.
    """
    settings = config.recorder
    if settings.file is None and settings.folder is None:
        return None
    if importlib.util.find_spec("zstandard") is None:
        missing = SupportError("recorder", "the Python package zstandard is not installed", "Install zstandard.")
        if settings.file is not None:
            raise missing
        log.warning("rounds are not recorded: %s", missing)
        return None

    from koordebpf.kernel.cgroup.kill import raise_thread_priority
    from koordebpf.store.recorder.recorder import Recorder

    store = _open_store(config, scope, node)
    return Recorder(store, begin=raise_thread_priority) if config.lock_memory else Recorder(store)


def _open_store(config: AgentConfig, scope: NodeScope, node: str) -> Store:
    from koordebpf.store.recorder.ring import Run
    from koordebpf.store.recorder.stores import FileStore, Place, RingStore

    settings, run = config.recorder, Run(secrets.token_hex(4), node)
    if settings.file is not None:
        return FileStore(settings.file, run, _FILE_BYTES, option="recorder.file", reader_s=_READER_S)
    assert settings.folder is not None
    # By name alone: the id of a cgroup is another one after a restart, and nothing would remove what was before it.
    own = Path("recorder") / ("machine" if scope.kind == "machine" else scope.path.name)
    places = [
        Place(settings.folder / own, settings.max_size_bytes),
        Place(config.run_dir / own, min(settings.max_size_bytes, IN_MEMORY_BYTES)),
    ]
    return RingStore(places, run)
