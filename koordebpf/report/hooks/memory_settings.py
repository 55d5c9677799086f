"""What memory QoS wants of pods, beside what runtime hooks want: lines for `koordebpf pod explain`."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from koordebpf.policy.memory_qos.values import MemoryQosRules
from koordebpf.policy.memory_qos.writes import PodWrites, directory_writes, pod_writes
from koordebpf.report.hooks.pod_settings import PodSetting, PodSettings
from koordebpf.state.memory_qos.measured import MemoryQosView


def with_memory_settings(
    pods: Iterable[PodSettings], view: MemoryQosView | None, rules: MemoryQosRules
) -> list[PodSettings]:
    """Return pods with what memory QoS wants of them, too.

    Args:
        pods: with what runtime hooks want.
        view: of the last round in which memory QoS was due; None: there was none.
        rules: of that round.
    """
    if view is None:
        return list(pods)
    directories = {each.uid: each for each in view.measured.pods}
    made = {pod.uid: pod_writes(pod, directories[pod.uid], rules) for pod in view.pods}
    above = directory_writes(view, made.values(), rules)
    return [_with(pod, made[pod.uid], above) if pod.uid in made else pod for pod in pods]


def _with(pod: PodSettings, own: PodWrites, above: PodWrites) -> PodSettings:
    wanted = (*own.writes, *(each for each in above.writes if each.write.path == own.path))
    settings = (
        PodSetting(each.write.path, each.write.file.value, each.hook, each.source, each.write.value)
        for each in wanted
        if each.write.value is None or isinstance(each.write.value, int)
    )
    is_protected = bool(own.min_bytes or own.low_bytes)
    return replace(
        pod,
        path=pod.path or own.path,
        settings=(*pod.settings, *settings),
        problems=tuple(dict.fromkeys((*pod.problems, *own.problems, *(above.problems if is_protected else ())))),
    )
