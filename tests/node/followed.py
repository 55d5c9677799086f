"""A file of the guest that is read there again and again while something else happens."""

from __future__ import annotations

import shlex
from typing import Self

import msgspec

from tests.node.guest import Guest

_SCRIPT = """
import sys, time
path, last = sys.argv[1], None
while True:
    try:
        with open(path) as file:
            value = file.read().strip()
    except OSError as error:
        value = str(error)
    if value != last:
        print(time.monotonic(), value, sep="\\t", flush=True)
        last = value
    time.sleep(0.01)
"""
_FOLDER = "/run/followed"
_NAME_END = 50


class Span(msgspec.Struct, frozen=True):
    """What the file held, and for how many seconds by the guest's clock."""

    value: str
    seconds: float


class GuestFollowed:
    """Reads a file a hundred times a second from `with` on; `spans()` has what it held until now."""

    def __init__(self, guest: Guest, path: str) -> None:
        self._guest, self._path = guest, path
        # The end says which file it is. A name that starts with `-` would be an option to systemctl.
        self._unit = f"followed-{path.replace('/', '-')[-_NAME_END:].lstrip('-')}"
        self._output = f"{_FOLDER}/{self._unit}"

    def __enter__(self) -> Self:
        service = ["systemd-run", "--quiet", "--collect", f"--unit={self._unit}", "--nice=-5"]
        service.append(f"--property=StandardOutput=file:{self._output}")
        self._guest.check(f"mkdir -p {_FOLDER} && rm -f {self._output}")
        self._guest.check(shlex.join([*service, "python3", "-c", _SCRIPT, self._path]))
        self._guest.check(f"until [ -s {self._output} ]; do sleep 0.1; done")
        return self

    def spans(self) -> list[Span]:
        """Return what it held, in order, the last until now."""
        now_s, *lines = self._guest.check(f"cut -d' ' -f1 /proc/uptime; cat {self._output}").splitlines()
        seen = [(float(at_s), value) for at_s, _, value in (line.partition("\t") for line in lines)]
        ends_s = [*(at_s for at_s, _ in seen[1:]), max(float(now_s), seen[-1][0])]
        return [Span(value, end_s - at_s) for (at_s, value), end_s in zip(seen, ends_s, strict=True)]

    def __exit__(self, *_: object) -> None:
        self._guest.check(f"systemctl stop {self._unit}")
