"""A group's schemata in resctrl: a line for each resource, a value for each of its domains.

Source: Documentation/filesystems/resctrl.rst; fs/resctrl/ctrlmondata.c (before Linux 6.16 arch/x86/kernel/cpu/resctrl).
"""

from __future__ import annotations

import re

from koordebpf.errors import KernelFileError

_PART = re.compile(r"(LSR|LS|BE)/(L3|L3CODE|L3DATA|MB)/([0-9]{1,5})")
PART_RULE = "must name a group, a resource and a domain, as BE/L3/0"


def is_part(part: str) -> bool:
    """Tell whether this names a value in the schemata of one of Koordinator's groups."""
    return _PART.fullmatch(part) is not None


def group_of(part: str) -> str:
    """Return the group that a part is of."""
    return part.partition("/")[0]


def parse_schemata(text: str, path: str) -> dict[str, dict[int, int]]:
    """Return resource → domain → value; masks of cache are hexadecimal. Other resources are left out.

    Raises:  KernelFileError: not the file's format.
    """
    found: dict[str, dict[int, int]] = {}
    for line in text.splitlines():
        resource, colon, domains = line.strip().partition(":")
        if not colon or resource not in ("L3", "L3CODE", "L3DATA", "MB") or domains == "uninitialized":
            continue
        values = found.setdefault(resource, {})
        for each in domains.split(";"):
            domain, _, value = each.partition("=")
            try:
                values[int(domain)] = int(value, 10 if resource == "MB" else 16)
            except ValueError:
                raise KernelFileError(path, line, "must have domains as 0=7ff;1=7ff") from None
    return found


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
