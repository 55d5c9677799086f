"""The checkout's agent in a guest, as a service of systemd, seen by its journal and its audit file."""

from __future__ import annotations

import io
import json
import shlex
import tarfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.node.guest import Guest, GuestFailed
from tests.node.image import SOURCE
from tests.node.left import left_since, there
from tests.support.patience import patience

_ROOT = Path(__file__).parents[2]
_SOURCE = f"/{SOURCE}"
_PYTHONPATH = f"{_SOURCE}:/opt/koordebpf/site"
_CONFIG = "/etc/koordebpf/agent.kubeconfig"
_AUDIT = "/var/log/koordebpf.audit"
_UNIT = "koordebpf"
_METRICS = "http://127.0.0.1:9320/metrics"
_START_S = 240
_STOP_S = 60
_LAST_LINES = 40


class GuestAgent:
    """`koordebpf run` on the guest, from its first round on; `stop()` ends it by SIGTERM, twice is harmless.

    Args:
        guest: where.
        node_name: its Node.
        kubeconfig: what it asks the API server with.
        arguments: of `koordebpf run`, as `--enforce`.
    """

    def __init__(self, guest: Guest, node_name: str, kubeconfig: bytes, arguments: Sequence[str]) -> None:
        self._guest = guest
        self._before = there(guest)
        self._has_stopped = False
        # What an agent before it on the same node has left. A clock that is set back does not move the cursor.
        self._cursor = guest.check(
            f"rm -f {_AUDIT}; journalctl -n 1 --show-cursor | sed -n 's/^-- cursor: //p'"
        ).strip()
        bring_source(guest)
        guest.write(_CONFIG, kubeconfig)
        command = ["python3", "-m", "koordebpf", "run", "--source", "api", "--kubeconfig", _CONFIG]
        command += ["--node-name", node_name, "--audit", _AUDIT, *arguments]
        service = ["systemd-run", f"--unit={_UNIT}", "--collect", f"--setenv=PYTHONPATH={_PYTHONPATH}"]
        service.append(f"--property=TimeoutStopSec={_STOP_S}")  # the guest gives units 5 s
        guest.check(shlex.join([*service, *command]))
        self.wait_for_log(" watching ", _START_S)

    def wait_for_log(self, text: str, timeout_s: float = 120) -> None:
        """Wait until the agent has logged these words.

        Raises:  GuestFailed: it has not, and its last lines.
        """
        self.wait_until(lambda: text in self.log(), f"the agent did not log {text!r}", timeout_s)

    def wait_until(self, condition: Callable[[], bool], what_not: str, timeout_s: float = 240) -> None:
        """Wait until a condition is true while the agent runs.

        Raises:  GuestFailed: it is not, and the agent's last lines.
        """
        deadline = time.monotonic() + patience(timeout_s)
        while not condition():
            if time.monotonic() > deadline or not self.is_active():
                raise GuestFailed(f"{what_not}:\n{self.last_lines()}")
            time.sleep(0.5)

    def holds(self) -> set[str]:
        """Return the BPF programs, cgroups and mounts that are there since it started."""
        return there(self._guest) - self._before

    def log(self) -> str:
        """Return what the agent has logged."""
        return self._guest.check(f"journalctl -u {_UNIT} --after-cursor='{self._cursor}' -o cat --no-pager")

    def last_lines(self) -> str:
        """Return the end of its log."""
        return "\n".join(self.log().splitlines()[-_LAST_LINES:])

    def is_active(self) -> bool:
        """Tell whether the service runs."""
        return self._guest.run(f"systemctl is-active --quiet {_UNIT}").code == 0

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels; 0 where there is none."""
        text = self._guest.check(f"busybox wget -q -O - {_METRICS}")
        lines = (line.rpartition(" ") for line in text.splitlines())
        return sum(float(value) for key, _, value in lines if key.partition("{")[0] == name)

    def threads(self) -> set[str]:
        """Return the ids of its threads in the guest."""
        return set(self._guest.check(f"ls /proc/$(systemctl show -P MainPID {_UNIT})/task").split())

    def evictions(self) -> list[dict[str, Any]]:
        """Return the audit lines of rounds that had victims, as they were decided: what ends first is written first."""
        *whole, _unfinished = self._guest.check(f"cat {_AUDIT} 2>/dev/null || true").split("\n")
        lines = [line for line in map(json.loads, whole) if line.get("outcomes")]
        return sorted(lines, key=lambda line: int(line["decided_ns"]))

    def stop(self) -> str:
        """End it by SIGTERM; return what it has logged.

        Raises:  GuestFailed: it left BPF programs, cgroups or mounts.
        """
        if self._has_stopped:
            return self.log()
        self._guest.check(f"systemctl stop {_UNIT}", _STOP_S + 10)
        self._has_stopped = True
        if left := left_since(self._guest, self._before):
            raise GuestFailed(f"the agent left {', '.join(sorted(left))}")
        return self.log()


def bring_source(guest: Guest) -> None:
    """Copy the package and its built BPF objects into the guest, in place of what was there.

    Bytecode stays: it is checked by its source's hash, and to compile everything takes an emulated CPU half a minute.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=6) as archive:
        for path in (_ROOT / "koordebpf", _ROOT / "bpf" / "build"):
            archive.add(path, path.relative_to(_ROOT), filter=_without_bytecode)
    new = f"{_SOURCE}.new"
    guest.check(f"mkdir -p {new} && tar -xzf - -C {new}", given=buffer.getvalue())
    guest.check(
        f"cd {_SOURCE} && find . -name __pycache__ -print0 | tar --null -T - -c | tar -x -C {new}"
        f" && cd / && rm -rf {_SOURCE} && mv {new} {_SOURCE}"
    )


def koordebpf(*arguments: str) -> str:
    """Return the shell command that runs a command of the checkout's package in the guest."""
    return f"PYTHONPATH={_PYTHONPATH} {shlex.join(['python3', '-m', 'koordebpf', *arguments])}"


def _without_bytecode(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in info.name else info
