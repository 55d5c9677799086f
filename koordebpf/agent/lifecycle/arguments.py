"""Checks what a person gave before the kernel is touched: addresses, files and folders."""

from __future__ import annotations

import os

from koordebpf.agent.config.settings import AgentConfig
from koordebpf.errors import ConfigError
from koordebpf.report.http.listener import parse_listen
from koordebpf.store.outputs.output_file import STDOUT
from koordebpf.store.outputs.rotated_file import check_file


def check_arguments(config: AgentConfig) -> None:
    """Return where the agent can be started with these addresses, files and folders.

    Whether an address is in use shows when it is bound.

    Raises:  ConfigError: an address is not host:port, a file cannot be written, or there is nowhere to make the run
             directory in.
    """
    if config.audit == config.frames == STDOUT:
        raise ConfigError("--frames", "-", "must not be standard output, which has the lines of --audit")
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
    for option, path in (("--audit", config.audit), ("--frames", config.frames)):
        if path is not None:
            check_file(option, path)
