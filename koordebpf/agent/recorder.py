"""Opens the recorder that the settings ask for."""

from __future__ import annotations

import secrets
from pathlib import Path

from koordebpf.agent.config.settings import AgentConfig
from koordebpf.collect.scope import NodeScope
from koordebpf.errors import ConfigError
from koordebpf.store.recorder.recorder import Recorder, Store
from koordebpf.store.recorder.ring import Run
from koordebpf.store.recorder.settings import RecorderSettings
from koordebpf.store.recorder.stores import FileStore, Place, RingStore
from koordebpf.units import GIB, MIB

IN_MEMORY_BYTES = 4 * MIB
_FILE_BYTES = GIB
NOT_RECORDED = RecorderSettings(folder=None)


def open_recorder(config: AgentConfig, scope: NodeScope, node: str) -> Recorder | None:
    """Return the recorder; None: nothing is recorded. The ring's folder is opened later, by the thread that writes.

    Raises:  ConfigError: `recorder.file` is there already, or cannot be made.
    """
    settings, run = config.recorder, Run(secrets.token_hex(4), node)
    if settings.file is not None:
        return Recorder(_open_file(settings.file, run))
    if settings.folder is None:
        return None
    # By name alone: the id of a cgroup is another one after a restart, and nothing would remove what was before it.
    own = Path("recorder") / ("machine" if scope.kind == "machine" else scope.path.name)
    places = [
        Place(settings.folder / own, settings.max_size_bytes),
        Place(config.run_dir / own, min(settings.max_size_bytes, IN_MEMORY_BYTES)),
    ]
    return Recorder(RingStore(places, run))


def _open_file(path: Path, run: Run) -> Store:
    try:
        return FileStore(path, run, _FILE_BYTES)
    except OSError as error:
        raise ConfigError("recorder.file", str(path), f"must be a new file: {error.strerror}") from error
