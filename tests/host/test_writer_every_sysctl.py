"""Every sysctl that a strategy writes: refused, gone, fought for, and left by a killed agent.

The watermarks are the machine's own, by a step up. Of all of them, also those of Anolis kernels, there are stand-ins
besides: sysctls of a network namespace that no process has a use for, bind-mounted below a /proc/sys and a /sys of the
test. So it is the kernel that takes, shows and refuses values. What it has no error for is answered in its place.
Scheduler features are a fake's, over FUSE (test_system_config has the machine's own, where it opens them).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.act.writer.change import WriteResult
from koordebpf.act.writer.journal import Journal
from koordebpf.act.writer.places import Places
from koordebpf.act.writer.writer import CgroupWriter
from koordebpf.kernel.cgroup.files import Sysctl, broken_sysctl_rule
from koordebpf.policy.reconcile import DesiredState, FileKey, SysctlWrite
from tests.conftest import OTHER_MACHINE
from tests.contract.apiserver import until
from tests.host.fake_mount import mounted
from tests.host.one_file import Faults, OneFile, Vanishing
from tests.support.kernel_files import SchedFeatures

PROC_SYS = Path("/proc/sys")
# Each with a number of the same range, and a value that no new network namespace has.
STAND_INS = {
    Sysctl.MIN_FREE_KBYTES: ("net/core/somaxconn", 20_000),
    Sysctl.WATERMARK_SCALE_FACTOR: ("net/ipv4/ip_default_ttl", 100),
    Sysctl.SCHED_GROUP_IDENTITY: ("net/ipv4/tcp_sack", 0),
    Sysctl.SCHED_IDLE_SAVER_WMARK: ("net/ipv4/tcp_keepalive_time", 600),
    Sysctl.MEMCG_REAP_BACKGROUND: ("net/ipv4/tcp_timestamps", 0),
    Sysctl.PAGE_CACHE_LIMIT: ("net/ipv4/tcp_window_scaling", 0),
}
OWN = (Sysctl.MIN_FREE_KBYTES, Sysctl.WATERMARK_SCALE_FACTOR)
# Until it reads a line: then the namespace ends, and its sysctls with it.
_HOLD = "echo; read -r line"


class Namespace:
    """A network namespace whose sysctls are mounted below `folder`.

    Raises:  OSError: no namespace can be made here.
    """

    def __init__(self, folder: Path) -> None:
        self.places = Places({}, proc_sys=folder / "proc/sys", sysfs=folder / "sys")
        self._mounted: list[Path] = []
        command = ["unshare", "--net", "sh", "-c", _HOLD]
        self._holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._holder.stdout is not None
        if not self._holder.stdout.readline():
            self._holder.communicate()
            raise OSError(errno.EPERM, "unshare --net")

    def mount(self, sysctl: Sysctl, name: str, *options: str) -> Path:
        """Mount the sysctl of that name where the writer looks for this one."""
        path = self.places.locate(("", sysctl))
        assert path is not None
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        command = ["nsenter", f"--net=/proc/{self._holder.pid}/ns/net", "mount", "--bind"]
        subprocess.run([*command, str(PROC_SYS / name), str(path)], check=True)
        self._mounted.append(path)
        if options:
            subprocess.run(["mount", "-o", ",".join(("remount", "bind", *options)), str(path)], check=True)
        return path

    def end(self) -> None:
        """End the namespace; what is mounted stays, and answers ENOENT."""
        if self._holder.returncode is None:
            self._holder.communicate(b"\n")
            until(lambda: not any(map(_answers, self._mounted)), "an end of the namespace's sysctls")

    def close(self) -> None:
        for path in self._mounted:
            subprocess.run(["umount", str(path)], check=True)
        if self._holder.returncode is None:
            self._holder.communicate(b"\n")


def _answers(path: Path) -> bool:
    try:
        path.read_text()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def made_namespace(folder: Path) -> Iterator[Namespace]:
    if os.geteuid() != 0:
        pytest.skip("needs root: it makes a network namespace and mounts")
    try:
        made = Namespace(folder)
    except OSError as error:
        pytest.skip(f"{OTHER_MACHINE}no network namespace can be made: {error}")
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    with made_namespace(tmp_path_factory.mktemp("kernel")) as made:
        for sysctl, (name, _) in STAND_INS.items():
            made.mount(sysctl, name)
        yield made.places


def of_stand_ins(places: Places, sysctl: Sysctl, journal: Path) -> OneFile:
    other = next(each for each in STAND_INS if each is not sysctl)
    wanted = (("", sysctl), STAND_INS[sysctl][1])
    return OneFile(places, wanted, (("", other), STAND_INS[other][1]), journal)


class TestStandIn(Faults):
    @pytest.fixture(params=STAND_INS)
    def file(self, stand_ins: Places, tmp_path: Path, request: pytest.FixtureRequest) -> OneFile:
        return of_stand_ins(stand_ins, request.param, tmp_path / "journal")


class TestOwn(Faults):
    @pytest.fixture(params=OWN)
    def file(self, tmp_path: Path, require_root: None, request: pytest.FixtureRequest) -> Iterator[OneFile]:
        places, before = Places({}), {each: (PROC_SYS / each.path).read_text() for each in OWN}
        steps = {Sysctl.MIN_FREE_KBYTES: max(128, 10_240 - int(before[Sysctl.MIN_FREE_KBYTES]))}
        wanted = {each: int(text) + steps.get(each, 2) for each, text in before.items()}
        sysctl = request.param
        (other,) = (each for each in OWN if each is not sysctl)
        yield OneFile(places, (("", sysctl), wanted[sysctl]), (("", other), wanted[other]), tmp_path / "journal")
        now = {each: (PROC_SYS / each.path).read_text() for each in OWN}
        for each, text in before.items():
            if now[each] != text:
                (PROC_SYS / each.path).write_text(text)


class TestFeature(Faults):
    """One word of the scheduler's features, of a fake debugfs; beside it a sysctl in a plain file."""

    @pytest.fixture
    def file(self, tmp_path: Path) -> Iterator[OneFile]:
        features = SchedFeatures(START_DEBIT=True, HRTICK=False)

        def refuse(number: int | None) -> None:
            features.refusal = number

        places = Places({}, proc_sys=tmp_path / "proc/sys", sysfs=tmp_path / "sys")
        wanted, other = (("HRTICK", Sysctl.SCHED_FEATURES), 1), (("", Sysctl.MIN_FREE_KBYTES), 65_000)
        put_plain(places, other[0], "64000\n")
        for _ in mounted(tmp_path / "sys/kernel/debug", features.root()):
            yield OneFile(places, wanted, other, tmp_path / "journal", refuse=refuse)


def put_plain(places: Places, key: FileKey, text: str) -> None:
    path = places.locate(key)
    assert path is not None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


class TestVanishing(Vanishing):
    """A module that is removed takes its sysctls with it; so does a network namespace that ends."""

    @pytest.fixture
    def gone(self) -> WriteResult:
        return WriteResult.UNSUPPORTED

    @pytest.fixture
    def file(self, tmp_path: Path) -> Iterator[OneFile]:
        with made_namespace(tmp_path) as made:
            gone, stays = Sysctl.WATERMARK_SCALE_FACTOR, Sysctl.MIN_FREE_KBYTES
            made.mount(gone, STAND_INS[gone][0])
            put_plain(made.places, ("", stays), "64000\n")
            wanted, kept = (("", gone), STAND_INS[gone][1]), (("", stays), 65_000)
            yield OneFile(made.places, wanted, kept, tmp_path / "journal", remove=made.end)


class TestRefusedByTheKernel:
    """What the kernel itself says against a value or a write, for a sysctl in the place of one that is wanted."""

    @pytest.fixture
    def namespace(self, tmp_path: Path) -> Iterator[Namespace]:
        with made_namespace(tmp_path) as made:
            yield made

    @staticmethod
    def refused(namespace: Namespace, value: int, journal: Path) -> tuple[WriteResult, str]:
        sysctl = Sysctl.WATERMARK_SCALE_FACTOR
        path = namespace.places.locate(("", sysctl))
        assert path is not None
        assert broken_sysctl_rule(sysctl, value) is None  # it is for the kernel to refuse
        before = path.read_text()
        with Journal(journal) as opened:
            writer = CgroupWriter(namespace.places, opened, enforce=True)
            wanted = DesiredState("a test", sysctls=(SysctlWrite(sysctl, value),))
            (change,) = writer.apply(wanted, 0).changes
            assert path.read_text() == before
            assert writer.apply(wanted, 1).changes == ()
            assert writer.restore(2).left == ()
        assert path.read_text() == before
        assert not journal.exists()
        return change.result, change.detail

    def test_a_value_beyond_its_range(self, namespace: Namespace, tmp_path: Path) -> None:
        namespace.mount(Sysctl.WATERMARK_SCALE_FACTOR, "net/ipv4/ip_default_ttl")  # up to 255
        assert self.refused(namespace, 300, tmp_path / "journal") == (WriteResult.REFUSED, "EINVAL")

    def test_a_mount_that_is_read_only(self, namespace: Namespace, tmp_path: Path) -> None:
        namespace.mount(Sysctl.WATERMARK_SCALE_FACTOR, "net/ipv4/ip_default_ttl", "ro")
        assert self.refused(namespace, 100, tmp_path / "journal") == (WriteResult.REFUSED, "EROFS")

    def test_one_that_no_process_may_write(self, namespace: Namespace, tmp_path: Path) -> None:
        namespace.mount(Sysctl.WATERMARK_SCALE_FACTOR, "kernel/ngroups_max")  # of mode 0444, also for root
        assert self.refused(namespace, 100, tmp_path / "journal") == (WriteResult.REFUSED, "EACCES")

    def test_one_that_is_in_use(self, namespace: Namespace, tmp_path: Path) -> None:
        namespace.mount(Sysctl.WATERMARK_SCALE_FACTOR, "kernel/perf_event_max_stack")
        with stacks_are_sampled():
            assert self.refused(namespace, 128, tmp_path / "journal") == (WriteResult.BUSY, "EBUSY")


_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
_SOFTWARE, _DUMMY, _CALLCHAIN, _DISABLED = 1, 9, 1 << 5, 1  # include/uapi/linux/perf_event.h


# While any event samples call chains, kernel/events/callchain.c answers EBUSY to a write of their longest.
@contextlib.contextmanager
def stacks_are_sampled() -> Iterator[None]:
    size = 112
    attributes = struct.pack("<IIQQQQQ", _SOFTWARE, size, _DUMMY, 0, _CALLCHAIN, 0, _DISABLED).ljust(size, b"\0")
    number = _PERF_EVENT_OPEN.get(os.uname().machine)
    if number is None:
        pytest.skip(f"{OTHER_MACHINE}its perf_event_open has another number")
    libc = ctypes.CDLL(None, use_errno=True)
    fd = libc.syscall(number, ctypes.create_string_buffer(attributes, size), 0, -1, -1, 8)
    if fd < 0:
        pytest.skip(f"{OTHER_MACHINE}no perf event: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        os.close(fd)
