"""Whether the kernel is locked down against root, and what it says then to a program that would read its memory."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from koordebpf.errors import SupportError
from koordebpf.kernel.bpf import libbpf
from koordebpf.kernel.io.table import field

# A helper that reads memory is none there is then, for the verifier (kernel/trace/bpf_trace.c): EINVAL.
_REFUSALS = (errno.EINVAL, errno.EPERM)


def lockdown() -> str | None:
    """Return what is in force: none, integrity or confidentiality; None: not known.

    Source:  /sys/kernel/security/lockdown (security/lockdown/lockdown.c), of the securityfs, which may not be mounted.
    """
    try:
        text = field(Path("/sys/kernel/security/lockdown").read_bytes())
    except OSError:
        return None
    # "none [integrity] confidentiality": the brackets mark it.
    return text.partition("[")[2].partition("]")[0] or None


def is_of_lockdown(error: OSError) -> bool:
    """Tell whether the kernel refuses BPF because it is locked down, and so any program that reads memory."""
    return error.errno in _REFUSALS and lockdown() == "confidentiality"


def explain_refusal(error: OSError) -> tuple[str, str]:
    """Return why the kernel refuses BPF, and the remedy, as two sentences' bodies."""
    code = error.errno or errno.EINVAL
    if is_of_lockdown(error):
        reason = f"the kernel is locked down and lets no program read its memory ({errno.errorcode[code]})"
        return reason, "Boot with lockdown=integrity, or without lockdown."
    return libbpf.explain_errno(code)


@contextmanager
def opening(
    feature: str, close: Callable[[], None], explain: Callable[[OSError], tuple[str, str]] = explain_refusal
) -> Iterator[None]:
    """Open BPF programs in the block: whatever is raised there closes them, and an OSError becomes a SupportError."""
    try:
        yield
    except BaseException as error:
        close()
        if isinstance(error, OSError):
            raise SupportError(feature, *explain(error)) from None
        raise
