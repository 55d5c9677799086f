"""Runs inside the guest: takes shell commands from the host by a virtio-serial port, and answers how they ended.

A request is a line of JSON, `{"id", "command", "input"}`, an answer `{"id", "code", "output"}`. `input` and `output`
are base64, `output` is standard output and error. Each command runs in a thread of its own, so that one may wait.
"""

import base64
import json
import os
import subprocess
import threading
import time
from pathlib import Path

_PORT = "/dev/virtio-ports/koordebpf.commands"
_ENVIRONMENT = {
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}
_lock = threading.Lock()


def _answer(port: int, line: bytes) -> None:
    request = json.loads(line)
    done = subprocess.run(
        ["/bin/bash", "-c", request["command"]],
        input=base64.b64decode(request["input"]),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/root",
        env=_ENVIRONMENT,
        check=False,
    )
    output = base64.b64encode(done.stdout).decode()
    answer = json.dumps({"id": request["id"], "code": done.returncode, "output": output}).encode() + b"\n"
    with _lock:
        while answer:
            answer = answer[os.write(port, answer) :]


def main() -> None:
    """Serve for ever."""
    while not Path(_PORT).exists():
        time.sleep(0.1)
    port = os.open(_PORT, os.O_RDWR)
    rest = b""
    while True:
        part = os.read(port, 1 << 16)
        if not part:  # the host is not connected: poll(2) would say POLLHUP at once, again and again
            time.sleep(0.05)
            continue
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            threading.Thread(target=_answer, args=(port, line), daemon=True).start()


if __name__ == "__main__":
    main()
