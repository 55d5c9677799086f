"""What strategies want of pods, as a running agent says it: lines for `koordebpf pod explain`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from koordebpf.kernel.cgroup.files import Value
from koordebpf.state.view import PodView


class PodSetting(msgspec.Struct, frozen=True, omit_defaults=True):
    """One value: of a cgroup file, or of the processes in a cgroup. `path` is below the mount.

    `hook`   the feature gate.
    `value`  a number, a list of CPUs, the name of a core scheduling group, devices with their limits; null: no limit.
    """

    path: str
    file: str
    hook: str
    source: str
    value: int | str | list[int] | None = None


class PodLines(msgspec.Struct, frozen=True):
    """What one strategy wants of one pod; `path` is the directory of its own level."""

    path: str | None = None
    settings: tuple[PodSetting, ...] = ()
    problems: tuple[str, ...] = ()


class PodSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """What all strategies want of one pod; `path` None: none of them wants anything of any."""

    uid: str
    namespace: str
    name: str
    path: str | None = None
    settings: tuple[PodSetting, ...] = ()
    problems: tuple[str, ...] = ()


def pod_settings(pods: Iterable[PodView], wanted: Sequence[Mapping[str, PodLines]]) -> list[PodSettings]:
    """Return all pods with what strategies want of them.

    Args:
        pods: of the last round.
        wanted: of each strategy, by UID.
    """
    return [_settings_of(pod, [lines for each in wanted if (lines := each.get(pod.uid))]) for pod in pods]


def _settings_of(pod: PodView, wanted: Sequence[PodLines]) -> PodSettings:
    return PodSettings(
        pod.uid,
        pod.namespace,
        pod.name,
        next((each.path for each in wanted if each.path is not None), None),
        tuple(setting for each in wanted for setting in each.settings),
        tuple(dict.fromkeys(problem for each in wanted for problem in each.problems)),
    )


def json_value(value: Value) -> int | str | list[int] | None:
    """Return a file's value as `PodSetting` has it."""
    if isinstance(value, frozenset):
        return sorted(value)
    return value if isinstance(value, int) else None
