"""Every cgroup value of one pod: what the file holds, who has it so, from which field, what it held before.

From three places: the files of the running kernel, the journal of the agent that acts, and what that agent says.
"""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from koordebpf.act.writer.journal import JOURNAL_PATH, read_journal
from koordebpf.act.writer.places import Original, Places, Unusable, read_held
from koordebpf.attribution.paths import place_of_path
from koordebpf.decision.strategies import STRATEGIES
from koordebpf.errors import ActuationError, CgroupGone, ConfigError, SupportError
from koordebpf.kernel.cgroup.files import V1_NO_LIMIT_BYTES, CgroupFile, Value, is_table, settled
from koordebpf.kernel.cgroup.hierarchy import ControllerMount, find_controllers, walk
from koordebpf.kernel.cgroup.pod_directory import bears
from koordebpf.kernel.io.text_file import read_kernel_file
from koordebpf.policy.reconcile import FileKey
from koordebpf.printable import page
from koordebpf.report.http.local_socket import agent_socket, asked
from koordebpf.report.pages.columns import cut_middle, filled
from koordebpf.report.pod_settings import PodSetting, PodSettings
from koordebpf.strategies.memory_qos.decide import ProtectedLevel, in_effect

_FILE_WIDTH, _VALUE_WIDTH = 22, 14
_NOT_OURS = "not by this agent"
_FILES = (
    CgroupFile.CPU_SHARES,
    CgroupFile.CPU_QUOTA,
    CgroupFile.CPU_PERIOD,
    CgroupFile.CPU_BURST,
    CgroupFile.CPU_IDLE,
    CgroupFile.CPU_BVT,
    CgroupFile.CPUSET_CPUS,
    CgroupFile.MEMORY_LIMIT,
    CgroupFile.MEMORY_HIGH,
    CgroupFile.MEMORY_LOW,
    CgroupFile.MEMORY_MIN,
    CgroupFile.MEMORY_OOM_GROUP,
    CgroupFile.MEMORY_SOFT_LIMIT,
    CgroupFile.MEMORY_WMARK_RATIO,
    CgroupFile.MEMORY_WMARK_SCALE,
    CgroupFile.MEMORY_WMARK_MIN_ADJ,
    CgroupFile.MEMORY_PRIORITY,
    CgroupFile.MEMORY_USE_PRIORITY_OOM,
    CgroupFile.MEMORY_PAGECACHE_ENABLE,
    CgroupFile.MEMORY_PAGECACHE_SIZE,
    CgroupFile.MEMORY_PAGECACHE_SYNC,
    CgroupFile.FREEZE,
    *(each for each in CgroupFile if is_table(each)),
)
_PROTECTION = (CgroupFile.MEMORY_MIN, CgroupFile.MEMORY_LOW)
_GATES = {each.name: each.gate for each in STRATEGIES}


# The page: every value of a pod, who set it, from which field. 80 columns.


class ExplainedValue(msgspec.Struct, frozen=True, omit_defaults=True):
    """One value of a cgroup.

    `held`     what the file reads as.
    `owners`   feature gates, or the ladder, that have it written; none: kubelet, the runtime or the kernel has.
    `before`   what it read as before the first write.
    `source`   the field that a hook takes the value from.
    `differs`  the hook wants another value: in words which.
    `effective` of memory.min and memory.low: what is in effect, in bytes; no pod has more than the directories above.
    """

    file: str
    held: str
    owners: tuple[str, ...] = ()
    before: str | None = None
    source: str | None = None
    differs: str | None = None
    effective: int | None = None


class ExplainedCgroup(msgspec.Struct, frozen=True, omit_defaults=True):
    """One directory of a pod; `container` None: the pod's own level."""

    path: str
    values: tuple[ExplainedValue, ...]
    container: str | None = None


class ExplainedPodValues(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pod with all its directories."""

    uid: str
    name: str | None
    cgroups: tuple[ExplainedCgroup, ...]
    problems: tuple[str, ...] = ()


def pod_values_page(pod: ExplainedPodValues) -> str:
    """Return the page, at most 80 columns wide."""
    lines = [*filled(f"pod {pod.name}, uid {pod.uid}" if pod.name else f"pod with uid {pod.uid}")]
    for problem in pod.problems:
        lines += filled(f"! {problem}")
    for cgroup in pod.cgroups:
        lines += [
            "",
            *filled(f"container {cut_middle(cgroup.container, 24)}" if cgroup.container else "the pod itself"),
        ]
        lines += filled(f"/{cgroup.path}", "  ")
        for value in cgroup.values:
            lines += _value_lines(value)
    return page(lines)


def _value_lines(value: ExplainedValue) -> list[str]:
    owners = ", ".join(value.owners) or _NOT_OURS
    before = "" if value.before is None else f", before: {_shown(value.before)}"
    held = cut_middle(_shown(value.held) if value.held or not value.differs else "-", _VALUE_WIDTH)
    name = cut_middle(value.file, _FILE_WIDTH)
    lines = filled(f"{name.ljust(_FILE_WIDTH)} {held.rjust(_VALUE_WIDTH)}  {owners}{before}", "  ")
    effect = None if value.effective is None else f"in effect: {value.effective}"
    for detail in (value.source, value.differs, effect):
        if detail:
            lines += filled(detail, "      ")
    return lines


def _shown(text: str) -> str:
    is_none = text == "-1" or text.startswith("max") or (text.isdigit() and int(text) >= V1_NO_LIMIT_BYTES)
    return "no limit" if is_none else text or "empty"


# How it is found.


def protection_in_effect(places: Places, path: str, file: CgroupFile) -> int | None:
    """Return what a cgroup below that of all pods keeps; None: all of its memory, or it cannot be read.

    What is above the directory of all pods is not looked at: the agent names it where it has less.

    Cost:    60 µs a directory beside those on the way.
    """
    top = next((each for each in _to(path) if place_of_path(each).is_kubepods), None)
    if top is None:
        return None
    levels: list[ProtectedLevel] = []
    for each in _to(path):
        if len(each) < len(top):
            continue
        try:
            setting = read_held(places, (each, file), 0).value
        except Unusable:
            return None
        if setting is not None and not isinstance(setting, int):
            return None
        beside = _beside(places, each, file) if each != top else 0
        levels.append(ProtectedLevel(setting, beside))
    return in_effect(levels)


def _to(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[: at + 1]) for at in range(len(parts))]


def _beside(places: Places, path: str, file: CgroupFile) -> int:
    above, _, own = path.rpartition("/")
    at = places.locate((path, file))
    total = 0
    for directory in at.parents[1].iterdir() if at is not None else ():
        if directory.name == own or not directory.is_dir():
            continue
        with contextlib.suppress(Unusable, CgroupGone, OSError, ValueError):
            setting = read_held(places, (f"{above}/{directory.name}", file), 0).value
            used = _current(directory)
            total += used if setting is None else min(used, setting) if isinstance(setting, int) else 0
    return total


def _current(directory: Path) -> int:
    return int(read_kernel_file(directory / "memory.current").text)


def explain_pod(wanted: str, run_dir: Path) -> ExplainedPodValues:
    """Return what is known of a pod, by `name`, `namespace/name` or UID.

    Raises:  ConfigError: there is no such pod, or several. SupportError: there is no cgroup hierarchy.
    """
    pods, folder = _asked_pods(run_dir)
    settings = _found(wanted, pods)
    mounts = find_controllers()
    places, mount = Places(mounts), _mount_point(mounts)
    uid = settings.uid if settings else wanted
    path = settings.path if settings and settings.path else _path_of(mount, uid)
    if path is None:
        rule = "must be a pod of this node" if pods else "must be a UID of a pod here: no agent runs that knows names"
        raise ConfigError("POD", wanted, rule)
    if not (mount / path).is_dir() and "memory" in mounts:
        mount = mounts["memory"].mount_point  # on v1 a cgroup need not be in every hierarchy
    originals = known_originals(folder, run_dir)
    wanted_of = {(each.path, each.file): each for each in (settings.settings if settings else ())}
    cgroups = tuple(_cgroup(places, each, path, originals, wanted_of) for each in (path, *_below(mount, path)))
    name = f"{settings.namespace}/{settings.name}" if settings else None
    return ExplainedPodValues(uid, name, cgroups, settings.problems if settings else ())


def _asked_pods(run_dir: Path) -> tuple[Sequence[PodSettings], Path | None]:
    try:
        socket = agent_socket(run_dir)
        return msgspec.json.decode(asked(socket, "pods"), type=list[PodSettings]), socket.parent
    except (ConfigError, OSError, http.client.HTTPException, msgspec.DecodeError):
        return (), None


def _found(wanted: str, pods: Iterable[PodSettings]) -> PodSettings | None:
    found = [each for each in pods if wanted in (each.uid, each.name, f"{each.namespace}/{each.name}")]
    if len(found) > 1:
        names = ", ".join(f"{each.namespace}/{each.name}" for each in found[:5])
        raise ConfigError("POD", wanted, f"must name one pod; there are {names}")
    return found[0] if found else None


# The directory that bears a pod's UID.
def _path_of(mount: Path, uid: str) -> str | None:
    for _, _, path in walk(mount, mount):
        if bears(path.rpartition("/")[2], [uid]) and place_of_path(path).pod_uid:
            return path
    return None


def _below(mount: Path, path: str) -> list[str]:
    return sorted(each for _, _, each in walk(mount / path, mount) if each.rpartition("/")[0] == path)


def _mount_point(mounts: Mapping[str, ControllerMount]) -> Path:
    if (mount := mounts.get("cpu") or mounts.get("memory")) is None:
        raise SupportError("cgroups", "no cpu and no memory controller", "Mount a cgroup hierarchy")
    return mount.mount_point


def known_originals(folder: Path | None, run_dir: Path) -> dict[FileKey, Original]:
    """Return what files held before an agent wrote them: by the journal in its folder, None: by all below `run_dir`."""
    folders = [folder] if folder else [each for each in sorted(run_dir.glob("*")) if each.is_dir()]
    found: dict[FileKey, Original] = {}
    for each in folders:
        with contextlib.suppress(ActuationError):
            found |= read_journal(each / JOURNAL_PATH.name)[0]
    return found


def _cgroup(
    places: Places,
    path: str,
    top: str,
    originals: Mapping[FileKey, Original],
    wanted: Mapping[tuple[str, str], PodSetting],
) -> ExplainedCgroup:
    values = []
    for file in _FILES:
        key, setting = (path, file), wanted.get((path, file.value))
        try:
            held = read_held(places, key, 0)
        except Unusable:
            continue
        original = originals.get(key)
        if original is not None and original.inode != held.inode:
            original = None
        if is_table(file) and original is None and setting is None:
            continue  # on v2 several of them are one file
        values.append(
            ExplainedValue(
                (places.locate(key) or Path(file.value)).name,
                held.text.strip(),
                tuple(_GATES.get(each, each) for each in original.owners) if original else (),
                original.text.strip() if original else None,
                setting.source if setting else None,
                _difference(places, key, held.value, setting),
                protection_in_effect(places, path, file) if file in _PROTECTION and held.value != 0 else None,
            )
        )
    values += [
        ExplainedValue(each.file, "", (each.hook,), None, each.source, f"wants {each.value}")
        for each in wanted.values()
        if each.path == path and each.file not in {file.value for file in CgroupFile}
    ]
    return ExplainedCgroup(path, tuple(values), None if path == top else path.rpartition("/")[2])


def _difference(places: Places, key: FileKey, held: Value, setting: PodSetting | None) -> str | None:
    _, file = key
    if setting is None or not isinstance(file, CgroupFile):
        return None
    if is_table(file):
        return None if str(held) == setting.value else f"{setting.hook} wants {setting.value}"
    value: Value = frozenset(setting.value) if isinstance(setting.value, list) else None
    if isinstance(setting.value, int):
        value = setting.value
    if held == settled(file, places.versions[file.controller], value):
        return None
    return f"{setting.hook} wants {places.format(key, value).strip() or 'none of its own'}"
