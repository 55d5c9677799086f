"""The rules by which the property tests judge an order of writes are those of the running kernel."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.files import CgroupFile, format_value, parse_cpu_list
from tests.host.rigs.cgroups import CPUS, Cgroups, made_cgroups
from tests.support.values.cpuset_rules import CpusetTree

_TREE = ("a", "a/b", "a/b/c", "a/d")
_POPULATED = ("a/b/c",)  # on v2 only a leaf may be
_WRITES = 400


def kernels_answer(path: Path, text: str) -> int:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    except OSError as error:
        assert error.errno is not None
        return error.errno
    finally:
        os.close(fd)
    return 0


def test_any_write_is_taken_or_refused_as_the_rules_say() -> None:
    with made_cgroups() as cgroups:
        online = parse_cpu_list(Path("/sys/devices/system/cpu/online").read_text(), "online")
        possible = max(parse_cpu_list(Path("/sys/devices/system/cpu/possible").read_text(), "possible")) + 1
        rules = CpusetTree(cgroups.version, online, possible=possible)
        write_all(rules, cgroups, "", online)
        for path in _TREE:
            cgroups.make(path)
            rules.add(cgroups.path(path))
            write_all(rules, cgroups, path, online)
        for path in _POPULATED:
            cgroups.populate(path)
            rules.populated.add(cgroups.path(path))
        if cgroups.version == 2:
            rules.keeps_tasks = answer_to_empty(cgroups, "a/b/c", online) == errno.ENOSPC
            rules.keeps_children = answer_to_empty(cgroups, "a", online) == errno.EBUSY
        chance = random.Random(42)
        answers = set()
        choices = [*sorted(online)[:3], possible]
        for _ in range(_WRITES):
            path = chance.choice(_TREE)
            cpus = frozenset(chance.sample(choices, chance.choice((0, 1, 1, 2, 2))))
            expected = rules.write(cgroups.path(path), cpus)
            text = format_value(CgroupFile.CPUSET_CPUS, cgroups.version, cpus)
            assert kernels_answer(cgroups.file(path, CPUS), text) == expected, (path, cpus, rules.cpus)
            answers.add(expected)
            for one in _TREE:
                assert parse_cpu_list(cgroups.text(one, CPUS), one) == rules.cpus[cgroups.path(one)]
                effective = cgroups.file(one, CPUS).with_name(
                    "cpuset.effective_cpus" if cgroups.version == 1 else "cpuset.cpus.effective"
                )
                assert parse_cpu_list(effective.read_text(), one) == rules.effective(cgroups.path(one))
        # Every kind of refusal came up.
        expected_answers = {0, errno.ERANGE}
        expected_answers |= {errno.EBUSY} if rules.keeps_children else set()
        expected_answers |= {errno.ENOSPC} if rules.keeps_tasks else set()
        expected_answers |= {errno.EACCES} if cgroups.version == 1 else set()
        assert answers == expected_answers


def answer_to_empty(cgroups: Cgroups, path: str, before: frozenset[int]) -> int:
    """Return what the kernel says to a set becoming empty; it is as before afterwards."""
    answer = kernels_answer(cgroups.file(path, CPUS), "\n")
    assert kernels_answer(cgroups.file(path, CPUS), format_value(CPUS, cgroups.version, before)) == 0
    return answer


def write_all(rules: CpusetTree, cgroups: Cgroups, path: str, cpus: frozenset[int]) -> None:
    if path == "":
        rules.add(cgroups.path())
    assert rules.write(cgroups.path(path), cpus) == 0
    assert kernels_answer(cgroups.file(path, CPUS), format_value(CPUS, cgroups.version, cpus)) == 0


def test_a_cpu_that_is_possible_and_not_online_is_refused() -> None:
    online = parse_cpu_list(Path("/sys/devices/system/cpu/online").read_text(), "online")
    possible = parse_cpu_list(Path("/sys/devices/system/cpu/possible").read_text(), "possible")
    if not possible - online:
        pytest.skip("not this kind of machine: every possible CPU is online")
    with made_cgroups() as cgroups:
        rules = CpusetTree(cgroups.version, online, possible=max(possible) + 1)
        rules.add(cgroups.path())
        cpus = frozenset({min(possible - online)})
        text = format_value(CPUS, cgroups.version, cpus)
        assert kernels_answer(cgroups.file("", CPUS), text) == rules.refusal(cgroups.path(), cpus) != 0
