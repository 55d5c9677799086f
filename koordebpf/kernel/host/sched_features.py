"""The scheduler's feature switches, a file of debugfs: a word for each, `NAME` where it is on and `NO_NAME` where off.

Source: kernel/sched/debug.c sched_feat_show, sched_feat_write; kernel/sched/features.h has the names.
"""

from __future__ import annotations

import re

from koordebpf.errors import KernelFileError

# sched_feat_write takes 63 bytes; "NO_" is three of them.
_NAME = re.compile(r"(?!NO_)[A-Z][A-Z0-9_]{0,59}")
FEATURE_NAME_RULE = "must be the name of a scheduler feature: capitals, digits and _, without NO_ in front"


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
