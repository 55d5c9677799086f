"""Two files that are written and hold no plain numbers: a group's schemata in resctrl, and the scheduler's features.

Of schemata each resource is a line, with a value for each of its domains. The features are switches, a file of debugfs:
a word for each, `NAME` where it is on and `NO_NAME` where off.

Source: Documentation/filesystems/resctrl.rst; fs/resctrl/ctrlmondata.c (before Linux 6.16 arch/x86/kernel/cpu/resctrl);
        kernel/sched/debug.c sched_feat_show, sched_feat_write; kernel/sched/features.h has the names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from koordebpf.errors import KernelFileError
from koordebpf.kernel.io.table import first_of_each, raw, rows

_PART = re.compile(r"(LSR|LS|BE)/(L3|L3CODE|L3DATA|MB)/([0-9]{1,5})")
_RESOURCES = {name.encode(): name for name in ("L3", "L3CODE", "L3DATA", "MB")}
_DOMAIN = {
    10: re.compile(rb" *([0-9]{1,9})= *([0-9]{1,20}) *"),
    16: re.compile(rb" *([0-9]{1,9})= *([0-9a-fA-F]{1,64}) *"),
}
PART_RULE = "must name a group, a resource and a domain, as BE/L3/0"
# sched_feat_write takes 63 bytes; "NO_" is three of them.
_NAME = re.compile(r"(?!NO_)[A-Z][A-Z0-9_]{0,59}")
FEATURE_NAME_RULE = "must be the name of a scheduler feature: capitals, digits and _, without NO_ in front"


def is_part(part: str) -> bool:
    """Tell whether this names a value in the schemata of one of Koordinator's groups."""
    return _PART.fullmatch(part) is not None


def group_of(part: str) -> str:
    """Return the group that a part is of."""
    return part.partition("/")[0]


def parse_schemata(text: str, path: str) -> dict[str, dict[int, int]]:
    """Return resource → domain → value; masks of cache are hexadecimal. Other resources are left out.

    Raises:  KernelFileError: the only row of a resource has another form.
    """
    return first_of_each(path, _resources(rows(raw(text))), "must have domains as 0=7ff;1=7ff")


def _resources(table: Iterable[bytes]) -> Iterator[tuple[str, dict[int, int] | None, bytes]]:
    for row in table:
        name, colon, domains = row.lstrip(b" ").partition(b":")
        resource = _RESOURCES.get(name)
        if colon and resource is not None and domains != b"uninitialized":
            yield resource, _domains(domains, 10 if resource == "MB" else 16), row


def _domains(text: bytes, base: int) -> dict[int, int] | None:
    values: dict[int, int] = {}
    for each in text.split(b";"):
        if (found := _DOMAIN[base].fullmatch(each)) is None:
            return None
        values.setdefault(int(found[1]), int(found[2], base))
    return values


def parse_part(text: str, part: str, path: str) -> int:
    """Return the value of one domain.

    Raises:  KernelFileError: not the file's format, or it has no such resource or domain.
    """
    _, resource, domain = part.split("/")
    value = parse_schemata(text, path).get(resource, {}).get(int(domain))
    if value is None:
        raise KernelFileError(path, f"{resource}:{domain}", "must be a resource and a domain of this group")
    return value


def format_part(part: str, value: int) -> str:
    r"""Return what is written; the kernel takes whole lines alone, and leaves the domains that a line does not name.

    >>> format_part("BE/L3/0", 15)
    'L3:0=f\n'
    """
    _, resource, domain = part.split("/")
    return f"{resource}:{domain}={value}\n" if resource == "MB" else f"{resource}:{domain}={value:x}\n"


def is_feature_name(name: str) -> bool:
    """Tell whether a kernel may have a feature of this name."""
    return _NAME.fullmatch(name) is not None


def parse_feature(text: str, name: str, path: str) -> int:
    """Return 1 where a feature is on, 0 where it is off; `path` is for the error.

    Raises:  KernelFileError: this kernel has no such feature.
    """
    words = text.split()
    if name in words:
        return 1
    if f"NO_{name}" in words:
        return 0
    raise KernelFileError(path, name, "must be a scheduler feature of this kernel")


def format_feature(name: str, value: int) -> str:
    """Return the word that is written, one a write(2).

    >>> format_feature("WAKEUP_PREEMPTION", 0)
    'NO_WAKEUP_PREEMPTION'
    """
    return name if value else f"NO_{name}"
