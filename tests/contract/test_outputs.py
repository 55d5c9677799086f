"""Every option that names an output file, for every kind of what may be at that path: one rule, and nothing replaced.

The commands run whole where they need no kernel; of `run` and `record` it is what opens and writes the file.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from koordebpf.agent.run import check_arguments
from koordebpf.agent.sinks import open_recorder
from koordebpf.cli import _group
from koordebpf.cli.inputs import FilePath, OutputPath
from koordebpf.cli.kubectl import _group as kubectl
from koordebpf.collect.scope import open_scope
from koordebpf.configuration.settings import AgentConfig, RecorderSettings
from koordebpf.errors import ConfigError
from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from koordebpf.store.audit import open_audit
from koordebpf.store.frames import open_frames
from koordebpf.store.output_file import READER_S, OutputFile
from koordebpf.store.rotated_file import RotatedFile, check_file
from koordebpf.store.sink import AgentStopped
from tests.support.values.rounds import round_at, round_ended
from tests.unit.cli.test_reference import commands

BEFORE = b"what was here before\n"


def _report(path: Path, given: Path) -> None:
    _run("report", given, "-o", path)


def _redact(path: Path, given: Path) -> None:
    _run("recording", "redact", given, path)


def _audit(path: Path, _given: Path) -> None:
    check_arguments(AgentConfig(audit=path, recorder=RecorderSettings(folder=None)))
    log = open_audit(path)
    assert log is not None
    log._sink.put(b'{"kind": "plan"}\n')
    assert log.close(5)


def _frames(path: Path, _given: Path) -> None:
    check_arguments(AgentConfig(frames=path, recorder=RecorderSettings(folder=None)))
    log = open_frames(path)
    assert log is not None
    log.write(*round_at(1, used_mib=500))
    assert log._sink.close(5)


def _record(path: Path, _given: Path) -> None:
    config = AgentConfig(recorder=RecorderSettings(file=path))
    recorder = open_recorder(config, open_scope(find_memory_hierarchy(), None), "node-1")
    assert recorder is not None
    recorder.publish(round_ended(0))
    recorder.publish(AgentStopped(0))


def _run(*arguments: object) -> None:
    result = CliRunner().invoke(_group, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output


# Command and parameter → what writes the file that it names.
WRITERS: dict[tuple[str, str], Callable[[Path, Path], None]] = {
    ("report", "output"): _report,
    ("recording redact", "output"): _redact,
    ("run", "audit"): _audit,
    ("run", "frames"): _frames,
    ("record", "output"): _record,
}
GROWING = {("run", "audit"), ("run", "frames")}  # appended to, not replaced
# Parameters that name what is read, a folder, a cgroup, or a socket.
READ = {
    "audit", "cgroup", "cgroup_root", "config", "configmap", "directory", "files", "folder", "frame", "frames",
    "journals", "in_flight", "node_cgroup", "node_path", "nodes", "nodeslo_path", "other", "path", "recorder",
    "recording", "recordings", "replay", "run_dir", "series", "snapshot", "source", "url",
}  # fmt: skip
# Texts that name no path.
TEXTS = {
    "at", "entries", "feature_gates", "kube_context", "kubelet_url", "lease_namespace", "listen", "name", "node_name",
    "page", "pod", "probe_listen", "query", "since", "until", "wanted", "window", "namespace", "node",
    "agents_namespace", "arguments", "config_map", "context", "kubeconfig", "request_timeout",
}  # fmt: skip


def parameters() -> dict[tuple[str, str], click.Parameter]:
    found = dict(commands())
    context = click.Context(kubectl)
    for name in kubectl.list_commands(context):
        command = kubectl.get_command(context, name)
        assert command is not None
        found[f"kubectl {name}"] = command
    return {(name, str(each.name)): each for name, command in found.items() for each in command.params}


def is_output(each: click.Parameter) -> bool:
    return isinstance(each.type, OutputPath)


def test_every_option_that_names_an_output_is_tried_out() -> None:
    assert {place for place, each in parameters().items() if is_output(each)} == set(WRITERS)


def test_every_other_parameter_is_known_to_name_no_output() -> None:
    no_text = (click.Choice, click.types.IntParamType, click.types.FloatParamType, click.types.BoolParamType, FilePath)
    unknown = {
        place
        for place, each in parameters().items()
        if not is_output(each) and not isinstance(each.type, no_text) and place[1] not in READ | TEXTS
    }
    assert unknown == set(), "give it the type OutputPath and a writer here, or say that it is read"


@pytest.fixture
def given(tmp_path: Path) -> Path:
    from tests.unit.tools.incident.test_report_command import made

    return made(tmp_path / "given.rounds", 3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "outputs"
    made.mkdir()
    return made


@pytest.fixture(params=WRITERS, ids=lambda place: f"{place[0]}:{place[1]}")
def place(request: pytest.FixtureRequest) -> tuple[str, str]:
    found: tuple[str, str] = request.param
    return found


def device(path: Path) -> Path:
    """Make a node that is /dev/null by another name."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.close(os.open(path, os.O_WRONLY))
    except PermissionError:
        pytest.skip("device nodes need root, and a file system that has them")
    return path


def names(folder: Path) -> set[str]:
    return {each.name for each in folder.iterdir()}


def test_a_missing_file_is_made(place: tuple[str, str], folder: Path, given: Path) -> None:
    before = os.umask(0o022)
    try:
        WRITERS[place](folder / "out", given)
    finally:
        os.umask(before)
    assert (folder / "out").read_bytes()
    assert (folder / "out").stat().st_mode & 0o777 == (0o640 if place in GROWING else 0o600)
    assert names(folder) == {"out"}


def test_a_file_is_replaced_whole_and_keeps_its_mode(place: tuple[str, str], folder: Path, given: Path) -> None:
    (folder / "out").write_bytes(BEFORE * 10_000)
    (folder / "out").chmod(0o604)
    os.link(folder / "out", folder / "other")
    WRITERS[place](folder / "out", given)
    found = (folder / "out").read_bytes()
    assert found.startswith(BEFORE) == (place in GROWING)
    assert (folder / "out").stat().st_mode & 0o777 == 0o604
    assert names(folder) == {"out", "other"}
    if place not in GROWING:  # who has the old one open or mapped keeps it
        assert (folder / "other").read_bytes() == BEFORE * 10_000


def test_the_target_of_a_link_is_written_and_the_link_stays(
    place: tuple[str, str], folder: Path, tmp_path: Path, given: Path
) -> None:
    target = tmp_path / "target"
    target.write_bytes(BEFORE)
    (folder / "out").symlink_to("../target")
    WRITERS[place](folder / "out", given)
    assert (folder / "out").readlink() == Path("../target")
    assert target.is_file() and target.read_bytes() != BEFORE
    assert target.read_bytes().startswith(BEFORE) == (place in GROWING)


@pytest.mark.parametrize("target", ["device", "fifo", "nowhere", "folder"])
def test_another_link_is_refused(
    place: tuple[str, str], folder: Path, tmp_path: Path, given: Path, target: str
) -> None:
    to = tmp_path / "target"
    if target == "nowhere" and place in GROWING:  # where its folder is there, a log is made
        to = tmp_path / "none" / "target"
    match target:
        case "device":
            device(to)
        case "fifo":
            os.mkfifo(to)
        case "folder":
            to.mkdir()
    before = to.lstat() if target in {"device", "fifo", "folder"} else None
    (folder / "out").symlink_to(to)
    with pytest.raises(ConfigError, match="must be a file that can be written: a link must lead to a reg") as refused:
        WRITERS[place](folder / "out", given)
    assert refused.value.path and refused.value.value == str(folder / "out")
    assert (folder / "out").is_symlink() and names(folder) == {"out"}
    assert before == (to.lstat() if before else None) and to.exists() == (before is not None)


def test_a_device_is_written_and_stays(place: tuple[str, str], folder: Path, given: Path) -> None:
    before = device(folder / "out").lstat()
    WRITERS[place](folder / "out", given)
    after = (folder / "out").lstat()
    assert (after.st_mode, after.st_rdev, after.st_ino) == (before.st_mode, before.st_rdev, before.st_ino)
    assert names(folder) == {"out"}


def test_a_fifo_is_written_and_stays(place: tuple[str, str], folder: Path, given: Path) -> None:
    os.mkfifo(folder / "out")

    def opened() -> bytes:
        found = b""
        while not found:  # a log opens it once to try it out
            found = (folder / "out").read_bytes()
        return found

    read = in_thread(opened)
    WRITERS[place](folder / "out", given)
    assert read()
    assert stat.S_ISFIFO((folder / "out").lstat().st_mode) and names(folder) == {"out"}


def test_a_socket_is_written_and_stays(place: tuple[str, str], folder: Path, given: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "out"))
        listening.listen()

        def accepted() -> bytes:
            found = b""
            while not found:  # a log opens it once to try it out
                connection, _ = listening.accept()
                with connection, connection.makefile("rb") as stream:
                    found = stream.read()
            return found

        read = in_thread(accepted)
        WRITERS[place](folder / "out", given)
        assert read()
    assert stat.S_ISSOCK((folder / "out").lstat().st_mode) and names(folder) == {"out"}


def test_a_folder_is_refused(place: tuple[str, str], folder: Path, given: Path) -> None:
    with pytest.raises(ConfigError, match="must be a file that can be written: Is a directory"):
        WRITERS[place](folder, given)
    assert names(folder) == set()


@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/proc/thread-self/fd/1"])
def test_a_dash_is_standard_output(
    place: tuple[str, str],
    name: str,
    folder: Path,
    given: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
) -> None:
    monkeypatch.chdir(folder)
    WRITERS[place](Path(name), given)
    assert capfdbinary.readouterr().out
    assert names(folder) == set()


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "deleted file"])
def test_a_descriptor_of_ones_own_is_written_by_its_name_and_through_a_link(
    place: tuple[str, str], folder: Path, given: Path, kind: str
) -> None:
    # GIVEN something that was opened before, which its name cannot open again or would replace
    with ExitStack() as stack:
        read, fd = opened(kind, folder, stack)
        (folder / "out").symlink_to(f"/dev/fd/{fd}")
        before = os.fstat(fd)
        # WHEN it is written THEN what was open has got it, and stays
        for path in (Path(f"/proc/self/fd/{fd}"), Path(f"/dev/fd/{fd}"), folder / "out"):
            WRITERS[place](path, given)
            assert kind == "device" or read()
        assert (folder / "out").is_symlink() and names(folder) == {"out"}
        assert (os.fstat(fd).st_ino, os.fstat(fd).st_mode) == (before.st_ino, before.st_mode)


def opened(kind: str, folder: Path, stack: ExitStack) -> tuple[Callable[[], bytes], int]:
    """Return what reads it, and a descriptor that writes to it."""
    if kind == "socket":
        ours, theirs = socket.socketpair()
        stack.enter_context(ours)
        stack.enter_context(theirs)
        return lambda: ours.recv(1 << 20), theirs.fileno()
    if kind == "pipe":
        reading, writing = os.pipe()
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 1 << 20)  # no one reads before all is written
        stack.callback(os.close, reading)
    elif kind == "device":
        reading, writing = -1, os.open("/dev/null", os.O_WRONLY)
    else:
        writing = reading = os.open(folder / "gone", os.O_RDWR | os.O_CREAT)
        (folder / "gone").unlink()
    stack.callback(os.close, writing)
    return lambda: os.pread(reading, 1 << 20, 0) if kind == "deleted file" else os.read(reading, 1 << 20), writing


def test_a_descriptor_that_cannot_be_written_is_refused(place: tuple[str, str], given: Path) -> None:
    reading = os.open("/dev/null", os.O_RDONLY)
    try:
        for path in (Path(f"/dev/fd/{reading}"), Path("/proc/self/fd/98765")):
            with pytest.raises(ConfigError, match=r"must be a file that can be written: descriptor \d+ is "):
                WRITERS[place](path, given)
    finally:
        os.close(reading)


def test_two_logs_do_not_share_standard_output() -> None:
    with pytest.raises(ConfigError, match="--frames: '-': must not be standard output"):
        check_arguments(AgentConfig(audit=Path("-"), frames=Path("-")))
    with pytest.raises(ConfigError, match="--frames: '/dev/fd/1': must not be standard output"):
        check_arguments(AgentConfig(audit=Path("/dev/stdout"), frames=Path("/dev/fd/1")))


def test_a_file_called_dash_has_a_folder_before_it() -> None:
    asked = click.Command("x", params=[click.Option(["-o"], type=OutputPath())])
    with asked.make_context("x", ["-o", "./-"]) as context:
        assert context.params["o"] == Path.cwd() / "-"
    with asked.make_context("x", ["-o", "-"]) as context:
        assert context.params["o"] == Path("-")


def test_a_log_behind_a_link_is_rotated_beside_its_target(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "target").touch()
    (folder / "out").symlink_to(tmp_path / "target")
    log = RotatedFile(folder / "out", max_bytes=10, kept=1)
    for line in (b"first 1\n", b"second\n", b"third 1\n"):
        log.append(line)
    assert names(folder) == {"out"} and (folder / "out").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"third 1\n"
    assert (tmp_path / "target.1").read_bytes() == b"second\n"


@pytest.mark.parametrize("place", sorted(GROWING), ids=lambda place: place[1])
def test_a_log_that_is_moved_away_behind_a_link_is_made_again(
    place: tuple[str, str], folder: Path, tmp_path: Path, given: Path
) -> None:
    # GIVEN a log behind two links, and its file moved away, as by logrotate
    target = tmp_path / "target"
    (tmp_path / "between").symlink_to("target")
    (folder / "out").symlink_to("../between")
    log = RotatedFile(folder / "out", max_bytes=1000, kept=1)
    log.append(b"one\n")
    target.rename(tmp_path / "moved")
    # WHEN another line comes, or another agent starts THEN the file is made again, and the links stay
    log.append(b"two\n")
    assert target.read_bytes() == b"two\n" and (tmp_path / "moved").read_bytes() == b"one\n"
    target.unlink()
    WRITERS[place](folder / "out", given)
    assert target.read_bytes() and stat.S_IMODE(target.stat().st_mode) & 0o007 == 0
    assert (folder / "out").is_symlink() and (tmp_path / "between").is_symlink()


def test_a_rotation_that_was_cut_off_is_carried_on(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # GIVEN an agent that was killed when its log behind a link was renamed and the next one not made
    (folder / "out").symlink_to(tmp_path / "target")
    log, rotate = RotatedFile(folder / "out", max_bytes=5, kept=1), RotatedFile._rotate
    log.append(b"one\n")

    def killed(self: RotatedFile, path: Path) -> None:
        rotate(self, path)
        raise SystemExit

    with monkeypatch.context() as patched, pytest.raises(SystemExit):
        patched.setattr(RotatedFile, "_rotate", killed)
        log.append(b"two\n")
    # WHEN the next one starts THEN it writes
    check_file("--audit", folder / "out", 1)
    RotatedFile(folder / "out", max_bytes=5, kept=1).append(b"three\n")
    assert (tmp_path / "target").read_bytes() == b"three\n"
    assert (tmp_path / "target.1").read_bytes() == b"one\n"


@pytest.mark.parametrize("place", sorted(GROWING), ids=lambda place: place[1])
def test_a_log_that_cannot_be_rotated_is_refused_at_the_start(
    place: tuple[str, str], folder: Path, given: Path
) -> None:
    (folder / "out.1").mkdir()
    with pytest.raises(ConfigError, match=r"out\.1 must be a regular file, or not be there"):
        WRITERS[place](folder / "out", given)


def test_a_recording_waits_for_a_reader_so_long_and_no_longer(
    folder: Path, given: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("koordebpf.agent.sinks._READER_S", 0.2)
    os.mkfifo(folder / "out")
    with pytest.raises(ConfigError, match=r"recorder.file: .* it is a FIFO without a reader"):
        _record(folder / "out", given)


def test_a_strangers_file_in_a_folder_for_all_is_refused(place: tuple[str, str], folder: Path, given: Path) -> None:
    # GIVEN a file of another user in a folder like /tmp, at the path or behind a link
    if os.geteuid() != 0:
        pytest.skip("only root may give a file away")
    shared, stranger = folder / "shared", 65534
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "out").write_bytes(BEFORE)
    os.chown(shared / "out", stranger, stranger)
    (folder / "link").symlink_to(shared / "out")
    # WHEN it is to be written THEN that is refused: he would read it
    for path in (shared / "out", folder / "link"):
        with pytest.raises(ConfigError, match=r"must be a file that can be written: (it is another|Permission)"):
            WRITERS[place](path, given)
    assert (shared / "out").read_bytes() == BEFORE and names(shared) == {"out"}
    # AND where the folder is not for all it is written, and stays his
    shared.chmod(0o755)
    WRITERS[place](shared / "out", given)
    assert (shared / "out").stat().st_uid == stranger


def test_a_rotated_log_replaces_nothing_but_files(folder: Path) -> None:
    os.mkfifo(folder / "out.1")
    log = RotatedFile(folder / "out", max_bytes=10, kept=1)
    log.append(b"first 1\n")
    with pytest.raises(OSError, match="must be a regular file"):
        log.append(b"second\n")
    assert stat.S_ISFIFO((folder / "out.1").lstat().st_mode)
    assert (folder / "out").read_bytes() == b"first 1\n"


def in_thread(read: Callable[[], bytes]) -> Callable[[], bytes]:
    """Call it in a thread; what is returned waits for the answer."""
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(read()), daemon=True)
    thread.start()

    def answer() -> bytes:
        thread.join(10)
        return found[0]

    return answer


def test_a_fifo_that_no_process_reads_is_not_waited_for_without_end(folder: Path) -> None:
    os.mkfifo(folder / "out")
    with pytest.raises(ConfigError, match="it is a FIFO without a reader for 0 s"):
        OutputFile("--output", folder / "out", reader_s=0.05)
    assert 0 < READER_S <= 10  # of `report -o`, and of each recording
