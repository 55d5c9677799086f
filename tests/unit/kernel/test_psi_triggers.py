"""PSI triggers of many cgroups; plain files stand for theirs, which take what is written as well."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from koordebpf.kernel.proc.psi import PsiTriggers

FILE = "memory.pressure"


def pod(path: Path, name: str) -> Path:
    (path / name).mkdir()
    (path / name / FILE).touch()
    return path / name


def test_a_trigger_that_cannot_be_set_now_leaves_the_others_and_is_tried_again(tmp_path: Path) -> None:
    wanted = {i: pod(tmp_path, f"pod{i}") for i in range(3)}
    (wanted[1] / FILE).unlink()
    (wanted[1] / FILE).mkdir()
    triggers = PsiTriggers()
    new, _ = triggers.keep_only(wanted)
    assert len(new) == len(triggers) == 2
    assert triggers.refused is not None and FILE in triggers.refused
    (wanted[1] / FILE).rmdir()
    (wanted[1] / FILE).touch()
    new, _ = triggers.keep_only(wanted)
    assert len(new) == 1 and len(triggers) == 3
    triggers.close()


def test_a_process_without_a_free_fd_continues_and_has_its_trigger_later(tmp_path: Path) -> None:
    wanted = {1: pod(tmp_path, "pod1")}
    triggers = PsiTriggers()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(tmp_path, os.O_RDONLY)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        assert triggers.keep_only(wanted) == ([], [])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert len(triggers.keep_only(wanted)[0]) == 1
    triggers.close()


def test_one_whose_cgroup_is_gone_is_not_asked_for_again(tmp_path: Path) -> None:
    wanted = {1: tmp_path / "pod1"}
    triggers = PsiTriggers()
    assert triggers.keep_only(wanted) == ([], [])
    pod(tmp_path, "pod1")
    assert triggers.keep_only(wanted) == ([], [])
