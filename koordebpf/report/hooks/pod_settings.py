"""What runtime hooks want of one pod, as a running agent says it: lines for `koordebpf pod explain`."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from koordebpf.kernel.cgroup.files import Value
from koordebpf.policy.block_io.strategy import BLOCK_IO, BlockIODecision
from koordebpf.policy.hooks.values import HookRules
from koordebpf.policy.hooks.writes import pod_writes
from koordebpf.state.block_io.measured import BlockIOView
from koordebpf.state.hooks.measured import HookView
from koordebpf.state.view import PodView


class PodSetting(msgspec.Struct, frozen=True, omit_defaults=True):
    """One value: of a cgroup file, or of the processes in a cgroup. `path` is below the mount.

    `value`: a number, a list of CPUs, the name of a core scheduling group, devices with their limits; null: no limit.
    """

    path: str
    file: str
    hook: str
    source: str
    value: int | str | list[int] | None = None


class PodSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """What hooks want of one pod; `path` is the directory of its own level, None: no hook's gate is on."""

    uid: str
    namespace: str
    name: str
    path: str | None = None
    settings: tuple[PodSetting, ...] = ()
    problems: tuple[str, ...] = ()


_TASK_FILES = {"OOMScoreAdj": "oom_score_adj", "CoreSched": "core scheduling group"}


def pod_settings(pods: Iterable[PodView], hooks: HookView | None, rules: HookRules) -> list[PodSettings]:
    """Return all pods with what hooks want of them.

    Args:
        pods: of the last round.
        hooks: of the last round in which they were due; None: there was none.
        rules: of that round.
    """
    found: dict[str, PodSettings] = {}
    directories = {each.uid: each for each in hooks.measured.pods} if hooks is not None else {}
    for pod in hooks.pods if hooks is not None else ():
        directory = directories[pod.uid]
        made = pod_writes(pod, directory, rules)
        settings = [
            PodSetting(each.write.path, each.write.file.value, each.hook, each.source, _json(each.write.value))
            for each in made.writes
        ]
        settings += [
            PodSetting(each.path, _TASK_FILES.get(each.hook, each.hook), each.hook, each.source, each.value)
            for each in made.tasks
        ]
        found[pod.uid] = PodSettings(pod.uid, pod.namespace, pod.name, directory.path, tuple(settings), made.problems)
    return [found.get(pod.uid) or PodSettings(pod.uid, pod.namespace, pod.name) for pod in pods]


def with_block_io(
    settings: Iterable[PodSettings], view: BlockIOView | None, decision: BlockIODecision | None
) -> list[PodSettings]:
    """Return the pods with what block IO wants of them, too.

    Args:
        settings: of all pods.
        view: of the last round in which block IO was due; None: there was none.
        decision: of that round.
    """
    if view is None or decision is None:
        return list(settings)
    paths = {each.uid: each.path for each in view.pods}
    found = []
    for each in settings:
        path = paths.get(each.uid)
        if path is None:
            found.append(each)
            continue
        own = tuple(
            PodSetting(made.write.path, made.write.file.value, BLOCK_IO.gate, made.source, str(made.write.value))
            for made in decision.sources
            if f"{made.write.path}/".startswith(f"{path}/")
        )
        found.append(replace(each, path=each.path or path, settings=(*each.settings, *own)))
    return found


def _json(value: Value) -> int | str | list[int] | None:
    if isinstance(value, frozenset):
        return sorted(value)
    return value if isinstance(value, int) else None
