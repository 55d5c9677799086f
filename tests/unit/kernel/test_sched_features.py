"""The words of the scheduler's feature switches."""

from __future__ import annotations

import pytest

from koordebpf.errors import KernelFileError
from koordebpf.kernel.host.written_texts import format_feature, is_feature_name, parse_feature

# /sys/kernel/debug/sched/features of Linux 6.1, in part.
TEXT = "GENTLE_FAIR_SLEEPERS START_DEBIT NO_NEXT_BUDDY LAST_BUDDY NO_HRTICK NO_DOUBLE_TICK NONTASK_CAPACITY \n"


@pytest.mark.parametrize(("name", "value"), [("START_DEBIT", 1), ("NEXT_BUDDY", 0), ("NONTASK_CAPACITY", 1)])
def test_a_word_says_whether_it_is_on(name, value):
    assert parse_feature(TEXT, name, "features") == value
    assert parse_feature(f"{format_feature(name, value)} \n", name, "features") == value


@pytest.mark.parametrize("name", ["NEXT", "BUDDY", "NO_NEXT_BUDDY_X", "TASK_CAPACITY"])
def test_one_that_the_kernel_has_not_is_named(name):
    with pytest.raises(KernelFileError, match=f"features: '{name}': must be a scheduler feature of this kernel"):
        parse_feature(TEXT, name, "features")


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("HRTICK", True), ("A" * 60, True), ("A" * 61, False), ("NO_HRTICK", False), ("hrtick", False), ("A B", False)],
)
def test_names(name, is_one):
    assert is_feature_name(name) is is_one
