"""OOMScoreAdj: in which order the kernel kills the processes of containers.

Source: koordinator pkg/koordlet/runtimehooks/hooks/oomscoreadj; apis/extension/oom_score_adj.go.
"""

from __future__ import annotations

import re

import msgspec

from koordebpf.decoding import decoder
from koordebpf.state.pods.hook_pods import HookPod
from koordebpf.strategies.hooks.values import OOM_SCORE_ADJ, Setting

OOM_SCORE_ADJ_ANNOTATION = "koordinator.sh/oom-score-adj"
OOM_SCORE_ADJ_SPEC_ANNOTATION = "koordinator.sh/oom-score-adj-spec"
_MAX = 1000  # include/uapi/linux/oom.h
_NUMBER = re.compile(r"[+-]?[0-9]{1,6}")


def container_score(pod: HookPod, container: str, least: int, problems: list[str]) -> Setting[int] | None:
    """Return oom_score_adj of a container's processes; None: the annotations do not name it, or cannot be read.

    Below `least` no pod may ask: its memory would be paid for with another pod's processes.
    """
    if spec := pod.annotations.get(OOM_SCORE_ADJ_SPEC_ANNOTATION):
        try:
            by_name = decoder(dict[str, int]).decode(spec)
        except (msgspec.DecodeError, RecursionError) as error:
            problems.append(f"annotation {OOM_SCORE_ADJ_SPEC_ANNOTATION}: {spec[:80]!r}: {error}")
            return None
        if container in by_name:
            source = f"annotation {OOM_SCORE_ADJ_SPEC_ANNOTATION}[{container}]"
            return _checked(by_name[container], source, least, problems)
    written = pod.annotations.get(OOM_SCORE_ADJ_ANNOTATION)
    if not written:
        return None
    if not _NUMBER.fullmatch(written):
        problems.append(f"annotation {OOM_SCORE_ADJ_ANNOTATION}: {written[:40]!r}: must be {least} to {_MAX}")
        return None
    return _checked(int(written), f"annotation {OOM_SCORE_ADJ_ANNOTATION}", least, problems)


def _checked(value: int, source: str, least: int, problems: list[str]) -> Setting[int] | None:
    if not least <= value <= _MAX:
        problems.append(f"{source}: {str(value)[:20]}: must be {least} to {_MAX}")
        return None
    return Setting(value, OOM_SCORE_ADJ, source)
