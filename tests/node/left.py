"""What an agent may leave in a guest: BPF programs, cgroups, mounts."""

from __future__ import annotations

import json
import time

from tests.node.guest import Guest
from tests.support.patience import patience

_SCRIPT = r"""
import ctypes, json, os, struct
libc = ctypes.CDLL(None, use_errno=True)
BPF, NEXT, FD, INFO = 321, 11, 13, 15
CGROUP_DEVICE = 15  # BPF_PROG_TYPE_CGROUP_DEVICE: what a container may open, its runtime's program for each container
def bpf(command, data):
    buffer = ctypes.create_string_buffer(data, max(len(data), 16))
    return libc.syscall(BPF, command, buffer, len(buffer)), buffer.raw
programs, number = [], 0
while True:
    code, data = bpf(NEXT, struct.pack("III4x", number, 0, 0))
    if code < 0:
        break
    number = struct.unpack_from("II", data)[1]
    fd, _ = bpf(FD, struct.pack("I12x", number))
    if fd < 0:
        continue
    info = ctypes.create_string_buffer(232)
    bpf(INFO, struct.pack("IIQ", fd, len(info), ctypes.addressof(info)))
    if struct.unpack_from("I", info)[0] == CGROUP_DEVICE:
        os.close(fd)
        continue
    programs.append(f"program {number} {info.raw[64:80].rstrip(bytes(1)).decode(errors='replace')}")
    os.close(fd)
cgroups = [f"cgroup {path}" for path, _, _ in os.walk("/sys/fs/cgroup") if "/kubepods.slice" not in path]
mounts = [f"mount {line.split()[4]}" for line in open("/proc/self/mountinfo")]
of_pods = ("/var/lib/kubelet/pods/", "/run/containerd/", "/run/netns/", "/run/containers/", "/var/lib/containers/",
    "/run/ipcns/", "/run/utsns/", "/run/userns/")
print(json.dumps(programs + cgroups + [each for each in mounts if not each[6:].startswith(of_pods)]))
"""
_SYSTEMDS = (
    "sd_",
    "restrict_filesy",
)  # programs of units, and of RestrictFileSystems=, which daemon-reexec loads again
_ENDS_WITHIN_S = 20  # the kernel frees programs after grace periods


def there(guest: Guest) -> set[str]:
    """Return what there is now, outside of pods; systemd's own programs come and go and are not in it."""
    found: list[str] = json.loads(guest.check("python3 -", given=_SCRIPT.encode()))
    return {each for each in found if not any(f" {name}" in each for name in _SYSTEMDS)}


def left_since(guest: Guest, before: set[str]) -> set[str]:
    """Return what there is that was not there before, once what is ending has had its time."""
    deadline = time.monotonic() + patience(_ENDS_WITHIN_S)
    while (left := there(guest) - before) and time.monotonic() < deadline:
        time.sleep(1)
    return left
