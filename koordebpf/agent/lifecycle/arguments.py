"""Checks what a person gave before the kernel is touched: addresses, files and folders."""

from __future__ import annotations

import os

from koordebpf.configuration.settings import AgentConfig
from koordebpf.errors import ConfigError
from koordebpf.report.http.listener import parse_listen
from koordebpf.store import audit, frames
from koordebpf.store.outputs.descriptors import descriptor_name, named_descriptor
from koordebpf.store.outputs.rotated_file import check_file


def check_arguments(config: AgentConfig) -> None:
    """Return where the agent can be started with these addresses, files and folders.

    Whether an address is in use shows when it is bound.

    Raises:  ConfigError: an address is not host:port, a file cannot be written, or there is nowhere to make the run
             directory in.
    """
    written = [None if each is None else named_descriptor(each) for each in (config.audit, config.frames)]
    if written[0] is not None and written[0] == written[1]:
        rule = f"must not be {descriptor_name(written[0])}, which has the lines of --audit"
        raise ConfigError("--frames", str(config.frames), rule)
    for option, listen in (("--listen", config.listen), ("--probe-listen", config.probe_listen)):
        if listen:
            parse_listen(listen, option)
    if os.geteuid() != 0:  # what it may not see or write is not what it lacks: the programs' loader says that
        return
    above = config.run_dir.absolute().parent
    if not above.is_dir():
        raise ConfigError("--run-dir", str(config.run_dir), f"{above} must be a folder that is there")
    if (recording := config.recorder.file) is not None and not recording.absolute().parent.is_dir():
        raise ConfigError("FILE", str(recording), f"{recording.absolute().parent} must be a folder that is there")
    for option, path, kept in (("--audit", config.audit, audit.KEPT), ("--frames", config.frames, frames.KEPT)):
        if path is not None:
            check_file(option, path, kept)
