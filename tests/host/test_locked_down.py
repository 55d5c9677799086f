"""A kernel in lockdown, whose memory cannot be read. It stays so until the next boot: run it last on a machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from koordebpf.events.layout import check_layout
from koordebpf.kernel.backends.select import open_signals, passed_over_sentence
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kernel.host.machine import host_facts
from koordebpf.kernel.signals import SignalRequest
from koordebpf.tools.doctor.remedies import fixes_of
from tests.conftest import OTHER_MACHINE
from tests.support.bpf_ids import held_by

LOCKDOWN = Path("/sys/kernel/security/lockdown")


def test_the_files_are_read_and_the_sentence_says_why(memory_cgroup: Path, hierarchy: MemoryHierarchy) -> None:
    if "KOORDEBPF_OWN_MACHINE" not in os.environ:
        pytest.skip(f"{OTHER_MACHINE}it would stay locked down")
    if not LOCKDOWN.exists():
        subprocess.run(["mount", "-t", "securityfs", "securityfs", LOCKDOWN.parent], check=True)
    LOCKDOWN.write_text("confidentiality")
    before = held_by(os.getpid())
    request = SignalRequest(hierarchy.version, hierarchy.hierarchy_id, hierarchy.mount_point, memory_cgroup, None)
    backend = open_signals(request, check_layout)
    try:
        over = passed_over_sentence(backend)
        assert backend.name == "files"
        assert held_by(os.getpid()) == before
        fixes = {fix.what for signal in fixes_of(backend.sources, host_facts()) for fix in signal.fixes}
        assert over.startswith(
            "no co-re (BPF programs (co-re): the kernel is locked down and lets no program read its memory"
        )
        assert over.endswith(". Boot with lockdown=integrity, or without lockdown")
        assert any(what.startswith("lockdown=integrity") for what in fixes)  # the rest names this system's boot loader
    finally:
        backend.close()
