"""Do pods of low priority ask for more of a resource than the node has for them: memory and CPU alike."""

from __future__ import annotations

from collections.abc import Mapping

from koordebpf.policy.detect.verdict import Need
from koordebpf.slo.strategies.resource_threshold import first_byte_at
from koordebpf.state.amount import dimension, unit_of


def over_allocatable(
    requested: Mapping[str, int],
    allocatable: Mapping[str, int],
    percents: tuple[int, int],
) -> tuple[tuple[Need, ...], tuple[str, ...]]:
    """Return what is too much of each resource, and a sentence for each that anything is requested of.

    Args:
        requested: in the order in which resources are reported.
        allocatable: absent is 0: then all that is requested is the need.
        percents: threshold and lower mark, of what is allocatable.
    """
    threshold, lower = percents
    needs: list[Need] = []
    sentences: list[str] = []
    for resource, asked in requested.items():
        has = allocatable.get(resource, 0)
        if not asked:
            continue
        counted = dimension(resource)
        text = unit_of(counted.resource).format
        if has <= 0:
            needs.append(Need(counted, asked, asked, has))
            sentences.append(f"{text(asked)} of {resource} are requested and none is allocatable")
            continue
        percent = asked * 100 // has
        if asked * 100 <= threshold * has:
            sentences.append(f"{resource} requested at {percent} % ≤ {threshold} % of allocatable")
            continue
        need = asked - first_byte_at(lower, has)
        needs.append(Need(counted, need, asked, has))
        sentences.append(f"{resource} requested at {percent} % > {threshold} % of allocatable, need {text(need)}")
    return tuple(needs), tuple(sentences)
