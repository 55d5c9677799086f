"""Records the rounds of this node into a file: an agent that only watches, with nothing but its recorder."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from koordebpf.agent.run import run_agent
from koordebpf.configuration.checked import agent_config
from koordebpf.configuration.settings import named_gates
from koordebpf.slo.convert import laid_over
from koordebpf.store.output_file import check_output, is_descriptor
from koordebpf.store.recorder.read import Recording
from koordebpf.tools.recorder.redact import redact_recording
from koordebpf.units import format_bytes

# It serves nothing, writes no audit, and does not compete with what it measures.
_ALONE: Mapping[str, Any] = {
    "enforce": False,
    "listen": "",
    "probe_listen": "",
    "audit": None,
    "frames": None,
    "lock_memory": False,
}


def record_rounds(
    path: Path, in_file: Mapping[str, Any], given: Mapping[str, Any], seconds: float | None, *, redact: bool
) -> str:
    """Record until SIGTERM, SIGINT or for so long; return what was recorded, in words.

    Args:
        path: of the recording; - for standard output.
        in_file: settings of a configuration file.
        given: settings of the command line, which take precedence.
        seconds: None: until a signal.
        redact: keep hashes of names alone; what has the names lies in a folder beside it, which is removed at the end.

    Raises:  ConfigError, SupportError: something the start needs is missing or wrong.
    """
    if redact:
        check_output("FILE", path)
    with tempfile.TemporaryDirectory(prefix=".koordebpf-", dir=_folder_of(path)) if redact else nullcontext() as folder:
        first = Path(folder) / "names.rounds" if folder else path
        _record(first, in_file, given, seconds)
        if redact:
            return redact_recording(Recording(first), path)
    if not is_descriptor("FILE", path) and path.is_file():
        return f"{len(Recording(path))} rounds, {format_bytes(path.stat().st_size)}"
    return "the recording has ended"


# Of a device, or a descriptor, there is no folder of one's own.
def _folder_of(path: Path) -> Path | None:
    is_own = not is_descriptor("FILE", path) and (path.is_file() or not path.exists())
    return path.absolute().parent if is_own else None


def _record(first: Path, in_file: Mapping[str, Any], given: Mapping[str, Any], seconds: float | None) -> None:
    gates, _ = named_gates(given.get("feature_gates", ()))
    typed = {**given, **_ALONE, "feature_gates": gates, "recorder": {"folder": None, "file": first}}
    run_agent(agent_config(laid_over(in_file, typed)), seconds)
