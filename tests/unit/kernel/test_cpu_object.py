"""The object of the CPU pass where it cannot be opened: files are read in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordebpf.errors import SupportError
from koordebpf.events.layout import CPU_LAYOUTS, check_cpu_layout
from koordebpf.jobs.usage_series.cpu import FileCpu, cpu_mounts, open_cpu
from koordebpf.kernel.bpf import iterators
from koordebpf.kernel.bpf.iterators import CpuHierarchy, support_of_cpu_pass
from koordebpf.kernel.cgroup.hierarchy import ControllerMount

BROKEN = pytest.mark.parametrize("content", [b"", b"\x7fELF" + bytes(60)], ids=["an empty file", "no object"])


@BROKEN
def test_a_broken_object_is_a_signal_that_is_not_there_and_files_are_read(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu_iter.bpf.o").write_bytes(content)
    monkeypatch.setattr(iterators, "object_path", lambda name: tmp_path / f"{name}.bpf.o")
    source = support_of_cpu_pass(CpuHierarchy(tmp_path, False), check_cpu_layout)
    assert not source.works
    assert source.reason and source.remedy and source.cost
    counters = open_cpu((ControllerMount(2, tmp_path),), "")
    assert isinstance(counters, FileCpu)
    assert source.reason in counters.how


def test_a_member_that_moved_is_refused() -> None:
    offsets = {name: 8 * number for number, (name, _) in enumerate(CPU_LAYOUTS["koord_cpu"])}
    check_cpu_layout("koord_cpu", (48, offsets))
    with pytest.raises(SupportError, match="koord_cpu"):
        check_cpu_layout("koord_cpu", (48, {**offsets, "nr_periods": 32}))
    with pytest.raises(SupportError, match="koord_cpu"):
        check_cpu_layout("koord_cpu", (56, offsets))


def test_which_hierarchies_are_walked() -> None:
    cpu, accounting = ControllerMount(1, Path("/cpu")), ControllerMount(1, Path("/cpuacct"))
    both, unified = ControllerMount(1, Path("/cpu,cpuacct")), ControllerMount(2, Path("/unified"))
    assert cpu_mounts({"cpu": cpu, "cpuacct": accounting}, unified) == (accounting, cpu)
    assert cpu_mounts({"cpu": both, "cpuacct": both}, unified) == (both,)
    assert cpu_mounts({"cpu": unified, "memory": unified}, unified) == (unified,)
    assert cpu_mounts({"memory": unified}, unified) == (unified,)
    # v1 memory, and the CPU controller on the unified hierarchy
    assert cpu_mounts({"cpu": unified}, ControllerMount(1, Path("/memory"))) == (unified,)
