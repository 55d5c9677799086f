"""What the kernel or the host refuses: BPF, tracefs, the memory controller, pressure accounting. Each for real."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from koordebpf.errors import ConfigError, SupportError
from koordebpf.events.layout import check_layout
from koordebpf.kernel.backends.select import open_signals, passed_over_sentence, wanted_backend
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.kernel.signals import SignalRequest, quality_of
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent
from tests.support.nodes import MIB, NodeCgroup
from tests.support.patience import patience

# Root, but for what loading programs takes.
WITHOUT_BPF = ("setpriv", "--bounding-set=-bpf,-sys_admin,-perfmon")
PROGRAMS = ("prog", "link", "map")

Start = Callable[..., LiveAgent]


@pytest.fixture
def node(hierarchy: MemoryHierarchy) -> Iterator[NodeCgroup]:
    if shutil.which("setpriv") is None or shutil.which("unshare") is None:
        pytest.skip("needs setpriv and unshare of util-linux")
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 256 * MIB) as node:
        yield node


@pytest.fixture
def start(node: NodeCgroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Return a function that starts an agent on the node, whatever backend this run of the tests is about."""
    monkeypatch.delenv("KOORDEBPF_BACKEND", raising=False)
    node.add_pod("first")
    manifest = node.write_manifest(tmp_path / "pods.json")
    agents: list[LiveAgent] = []

    def start(*arguments: object, before: Sequence[str] = ()) -> LiveAgent:
        agents.append(LiveAgent(tmp_path, "--pods", manifest, "--node-cgroup", node.path, *arguments, before=before))
        return agents[-1]

    yield start
    for agent in agents:
        agent.__exit__(None, None, None)


def in_mounts_of_its_own(*unmounted: str) -> list[str]:
    """Return a prefix that runs a command where these are not mounted."""
    umount = "; ".join(f"while umount -l {path} 2>/dev/null; do :; done" for path in unmounted)
    return ["unshare", "-m", "sh", "-c", f'{umount}; exec "$@"', "sh"]


def readiness(agent: LiveAgent) -> dict[str, Any]:
    code, body = agent.get("/readyz")
    assert code == 200, body
    page: dict[str, Any] = json.loads(body)
    return page


def warnings_of(agent: LiveAgent) -> list[str]:
    return [line for line in agent.log.splitlines() if " W " in line and "oom_score_adj" not in line]


def held_by(agent: LiveAgent) -> list[str]:
    links = links_of(Path(f"/proc/{agent.process.pid}/fd"))
    return [link for link in links if any(f"bpf-{kind}" in link or f"bpf_{kind}" in link for kind in PROGRAMS)]


def links_of(fds: Path) -> list[str]:
    links = []
    for path in fds.iterdir():
        with contextlib.suppress(FileNotFoundError):  # one that was closed meanwhile
            links.append(str(path.readlink()))
    return links


@pytest.mark.slow
def test_without_cap_bpf_the_agent_works_by_files_and_says_so_once(start: Start, node: NodeCgroup) -> None:
    agent = start(before=WITHOUT_BPF).becomes_ready()
    (warning,) = warnings_of(agent)
    assert "no co-re (" in warning and "EPERM" in warning and "no bcc (" in warning
    assert "give CAP_BPF and CAP_PERFMON" in warning
    assert "backend files: " in warning
    assert held_by(agent) == []
    signals = readiness(agent)["signals"]
    assert signals["backend"] == "files"
    assert signals["births"] == "watched"
    assert agent.metric(
        f'koordebpf_signals_info{{backend="files",births="watched",scan="files",stalls="{signals["stalls"]}"}}'
    )
    _, text = agent.get("/readyz?verbose")
    assert text.splitlines() == [f"[+]{signals['sentence']}", "readyz check passed"]
    node.add_pod("second")
    until(lambda: agent.metric('koordebpf_pods{state="without_pod"}') == 1, "the new cgroup")
    assert agent.stop() == 0
    assert "Traceback" not in agent.log


@pytest.mark.parametrize("backend", ["co-re", "bcc"])
def test_a_backend_that_is_asked_for_and_refused_ends_the_start(start: Start, backend: str) -> None:
    agent = start("--backend", backend, before=WITHOUT_BPF)
    assert agent.process.wait(patience(60)) == 3, agent.log
    (line,) = agent.log.splitlines()
    assert line.startswith(f"koordebpf: BPF programs ({backend})") or line.startswith("koordebpf: BPF programs by bcc")
    assert line.endswith(".")


def test_the_variable_chooses_too_and_a_wrong_one_is_refused(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOORDEBPF_BACKEND", "files")
    agent = start().becomes_ready()
    assert readiness(agent)["signals"]["backend"] == "files"
    assert warnings_of(agent) == []
    monkeypatch.setenv("KOORDEBPF_BACKEND", "ebpf")
    wrong = start()
    assert wrong.process.wait(patience(60)) == 2
    assert "'ebpf' is not one of" in wrong.log
    with pytest.raises(ConfigError, match="KOORDEBPF_BACKEND: 'ebpf': must be one of auto, co-re, bcc, files"):
        wanted_backend()


def test_tracefs_is_not_needed(start: Start) -> None:
    before = in_mounts_of_its_own("/sys/kernel/tracing", "/sys/kernel/debug/tracing", "/sys/kernel/debug")
    seen = subprocess.run([*before, "ls", "/sys/kernel/tracing"], check=True, capture_output=True, text=True)
    assert "events" not in seen.stdout
    agent, usual = start(before=before).becomes_ready(), start().becomes_ready()
    assert readiness(agent)["signals"] == readiness(usual)["signals"]


@pytest.mark.parametrize("what", ["the memory hierarchy", "every cgroup file system"])
def test_without_the_memory_controller_the_start_ends_with_what_to_do(
    start: Start, hierarchy: MemoryHierarchy, what: str
) -> None:
    paths = [str(hierarchy.mount_point)]
    if what == "every cgroup file system":
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        paths = sorted({mount[1] for mount in mounts if mount[2] in ("cgroup", "cgroup2")}, reverse=True)
    agent = start(before=in_mounts_of_its_own(*paths))
    assert agent.process.wait(patience(60)) == 3, agent.log
    (line,) = agent.log.splitlines()
    assert "memory controller: " in line and "mount -t cgroup2" in line


def test_without_pressure_accounting_the_agent_works(start: Start) -> None:
    # What psi=0 leaves: no directory /proc/pressure.
    hide = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none /proc/pressure 2>/dev/null; exec "$@"', "sh"]
    agent = start("--backend", "files", before=hide).becomes_ready()
    assert "Traceback" not in agent.log
    assert agent.stop() == 0


@pytest.fixture
def request_of(memory_cgroup: Path, hierarchy: MemoryHierarchy) -> SignalRequest:
    return SignalRequest(hierarchy.version, hierarchy.hierarchy_id, hierarchy.mount_point, memory_cgroup, None)


def bpf_fds() -> list[str]:
    return [link for link in links_of(Path("/proc/self/fd")) if "bpf" in link]


def test_records_of_another_layout_are_passed_over_and_nothing_stays_attached(request_of: SignalRequest) -> None:
    before = bpf_fds()

    def drift(name: str, actual: object) -> None:
        if name == "koord_cgroup":  # one of the last: others are attached by then
            raise SupportError(
                f"BPF record {name}", "another layout", "Build the objects from these sources: make bpf."
            )
        check_layout(name, actual)  # type: ignore[arg-type]

    backend = open_signals(request_of, drift)
    try:
        assert backend.name == "files"
        assert bpf_fds() == before
        assert passed_over_sentence(backend).startswith("no co-re (BPF record koord_cgroup: another layout); no bcc (")
        assert [source.works for source in backend.sources[:2]] == [False, False]
    finally:
        backend.close()
    with pytest.raises(SupportError, match="another layout"):
        open_signals(request_of, drift, "co-re")
    assert bpf_fds() == before


def test_the_best_backend_is_taken_and_its_quality_is_known(request_of: SignalRequest) -> None:
    with_btf = Path("/sys/kernel/btf/vmlinux").exists()
    if not with_btf:
        pytest.skip(f"{OTHER_MACHINE}a kernel without BTF: co-re cannot work")
    backend = open_signals(request_of, check_layout)
    try:
        assert backend.name == "co-re"
        assert passed_over_sentence(backend) == ""
        quality = quality_of(backend)
        assert (quality.stalls, quality.births) == ("timed", "traced")
        lifecycle = next(source for source in backend.sources if source.signal == "cgroup births and deaths")
        lost = msgspec.structs.replace(lifecycle, works=False, reason="its program runs no more")
        assert quality_of(backend, [lost]).births == "rescanned"
        assert quality_of(backend, missed_runs=7).sentence == (
            f"{quality.sentence}; the kernel passed over 7 runs of programs"
        )
    finally:
        backend.close()
