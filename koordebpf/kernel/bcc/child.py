"""The process that compiles the programs with bcc, attaches them, hands their fds over and exits.

The only one that imports bcc, which brings LLVM: memory that never enters the daemon. Started by
`koordebpf.kernel.backends.bcc` as `python -m koordebpf.kernel.bcc.child SOCKET_FD SOURCES [COMPILER_FLAG…]`.
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import os
import platform
import socket
import sys
import warnings
from pathlib import Path
from typing import Any

from koordebpf.errors import SupportError
from koordebpf.kernel.bcc import process
from koordebpf.kernel.bpf.programs import partner_of

# Distributions put it beside their own Python, which need not be the one that runs this.
_DISTRIBUTION = "/usr/lib/python3/dist-packages"
_FEATURE = "BPF programs by bcc"
_KHEADERS = Path("/sys/kernel/kheaders.tar.xz")  # CONFIG_IKHEADERS; bcc unpacks it
_KPROBE_PMU = Path("/sys/bus/event_source/devices/kprobe/type")
CO_RE_ONLY = (  # each file says why
    *("cpu_iter.bpf.c", "deadman.bpf.c", "memcg_iter.bpf.c", "sched.bpf.c", "throttle.bpf.c"),
)
# How the names of programs begin, bpf/include/koord_bcc.h.
_RAW_TRACEPOINT = "on_"
_KPROBE = "kprobe_on_"
_FLAGS = ("-DKOORD_BCC", "-w")  # -w: a kernel's headers warn under a clang that did not build it
_LAYOUTS = b"layouts"


def main(arguments: list[str]) -> None:
    """Compile, and hand over layouts and maps; on request, attach, and hand over programs and links."""
    fd, folder, *flags = arguments
    with socket.socket(fileno=int(fd)) as end:
        try:
            built = Built(import_bcc(), Path(folder), flags)
        except SupportError as error:
            process.send(end, {"refused": [error.feature, error.reason, error.remedy]})
            return
        maps, map_fds = built.maps()
        process.send(end, {"layouts": built.layouts(), "maps": maps}, map_fds)
        try:
            process.receive(end)
        except EOFError:  # what was built is not what the parent reads: nothing is attached
            return
        programs, fds = built.attach()
        process.send(end, {"programs": programs}, fds)


def import_bcc() -> Any:
    """Return the module bcc.

    Raises:  SupportError: it is not there, another package has its name, or the kernel's headers are missing.
    """
    sys.path.insert(0, _DISTRIBUTION)
    remedy = "Install python3-bpfcc (Debian, Ubuntu) or python3-bcc (Fedora)."
    try:
        # Since Python 3.12 its own code is warned of, which would be taken for the reason of a failure.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            bcc = importlib.import_module("bcc")
    except ImportError as error:
        raise SupportError(_FEATURE, f"bcc cannot be imported ({error})", remedy) from None
    if not hasattr(bcc, "BPF"):
        raise SupportError(_FEATURE, f"{bcc.__file__} is another bcc, PyPI's for lattices", remedy)
    build = Path("/lib/modules", platform.release(), "build")
    if not build.is_dir() and not _KHEADERS.exists():
        raise SupportError(
            _FEATURE,
            f"the running kernel's headers are not installed (no {build})",
            f"Install linux-headers-{platform.release()} (Debian, Ubuntu) or kernel-devel (Fedora).",
        )
    return bcc


class Built:
    """The programs, compiled as one unit so that the kernel's headers are read once; and their maps.

    Raises:  SupportError: the compiler or the kernel refuses; why stands on stderr.
    """

    def __init__(self, bcc: Any, folder: Path, flags: list[str]) -> None:
        self._ways = {
            _RAW_TRACEPOINT: ("raw tracepoint", bcc.BPF.RAW_TRACEPOINT),
            _KPROBE: ("kprobe", bcc.BPF.KPROBE),
        }
        self._lib = bcc.lib
        for call in ("bpf_num_tables", "bpf_table_fd_id", "bpf_table_leaf_size_id"):
            getattr(self._lib, call).argtypes = [ctypes.c_void_p, ctypes.c_ulonglong][: 1 if "num" in call else 2]
        self._lib.bpf_table_leaf_size_id.restype = ctypes.c_size_t
        self._lib.bpf_table_name.argtypes = [ctypes.c_void_p, ctypes.c_ulonglong]
        self._lib.bpf_table_name.restype = ctypes.c_char_p
        sources = sorted(path for path in folder.glob("*.bpf.c") if path.name not in CO_RE_ONLY)
        text = "".join(f'#include "{path}"\n' for path in sources) + "KOORD_LAYOUTS;\n"
        try:
            self._bpf = bcc.BPF(text=text, cflags=[*_FLAGS, f"-I{folder / 'include'}", *flags])
        except Exception as error:  # bcc raises no narrower one
            raise SupportError(_FEATURE, str(error), "The compiler's own words follow.") from None
        self._module = self._bpf.module
        self._structures = dict(self._bpf[_LAYOUTS].Leaf._fields_)
        made, counted = self._lib.bpf_num_tables(self._module), ctypes.sizeof(self._structures.pop("tables"))
        if made != counted:
            raise SupportError(
                _FEATURE, f"bcc made {made} maps where the sources number {counted}", "Please report bcc's version."
            )

    def layouts(self) -> dict[str, tuple[int, dict[str, int]]]:
        """Return size and member offsets of each structure that user space reads."""
        return {
            name: (
                ctypes.sizeof(structure),
                {member: getattr(structure, member).offset for member, _ in structure._fields_},
            )
            for name, structure in self._structures.items()
            if name.startswith("koord_")  # bcc fills gaps with members of its own
        }

    def maps(self) -> tuple[list[tuple[str, int, int, int]], list[int]]:
        """Return name, type, size of a value and number of elements of each map; and their fds."""
        found = []
        fds = []
        for number in range(self._lib.bpf_num_tables(self._module)):
            name = self._lib.bpf_table_name(self._module, number)
            if name != _LAYOUTS:
                kind = self._lib.bpf_table_type_id(self._module, number)
                value_bytes = self._lib.bpf_table_leaf_size_id(self._module, number)
                entries = self._lib.bpf_table_max_entries_id(self._module, number)
                found.append((name.decode(), kind, value_bytes, entries))
                fds.append(self._lib.bpf_table_fd_id(self._module, number))
        return found, fds

    def attach(self) -> tuple[list[tuple[str, str, int, str]], list[int]]:
        """Attach what the kernel lets, ends before begins: a begin without its end would never end.

        Return program, how it is attached, errno (0: it is) and words of each; and two fds of each that is: the
        program's, and one that keeps it attached while it is open.
        """
        rows: list[tuple[str, str, int, str]] = []
        refused: dict[str, tuple[int, str]] = {}
        fds: list[int] = []
        numbers = range(self._lib.bpf_num_functions(self._module))
        names = [self._lib.bpf_function_name(self._module, number).decode() for number in numbers]
        for name in sorted(names, key=lambda name: partner_of(name) != name):
            prefix = _KPROBE if name.startswith(_KPROBE) else _RAW_TRACEPOINT
            program = _RAW_TRACEPOINT + name.removeprefix(prefix)
            how = f"{self._ways[prefix][0]} {name.removeprefix(prefix)}"
            try:
                if partner_of(program) in refused:
                    raise OSError(*refused[partner_of(program)])
                loaded = self._bpf.load_func(name.encode(), self._ways[prefix][1]).fd
                link = self._link(loaded, prefix, name.removeprefix(prefix))
            except Exception as error:  # bcc's load_func raises no narrower one, and tells no errno
                code = getattr(error, "errno", None) or ctypes.get_errno() or errno.EINVAL
                refused[program] = code, str(error)
                rows.append((program, how, code, str(error)))
            else:
                rows.append((program, how, 0, ""))
                fds += [loaded, link]
        return rows, fds

    def _link(self, loaded: int, prefix: str, target: str) -> int:
        ctypes.set_errno(0)
        if prefix == _RAW_TRACEPOINT:
            link = self._lib.bpf_attach_raw_tracepoint(loaded, target.encode())
        elif _KPROBE_PMU.exists():
            link = self._lib.bpf_attach_kprobe(loaded, 0, f"koord_{target}".encode(), target.encode(), 0, 0)
        else:
            # Before v4.17 or without kprobes. bcc would write to kprobe_events, which outlives every process.
            raise FileNotFoundError(errno.ENOENT, f"no {_KPROBE_PMU}")
        if link < 0:
            code = -link if link < -1 else ctypes.get_errno()
            raise OSError(code, f"attach {target}: {os.strerror(code)}")
        return int(link)


if __name__ == "__main__":
    main(sys.argv[1:])
