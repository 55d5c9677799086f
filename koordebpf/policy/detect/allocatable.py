"""Do pods of low priority ask for more of a resource than the node has for them: memory and CPU alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from koordebpf.slo.strategies.threshold_bytes import first_byte_at

Need = TypeVar("Need")


def over_allocatable(
    requested: Mapping[str, int],
    allocatable: Mapping[str, int],
    percents: tuple[int, int],
    need_of: Callable[[str, int, int, int], Need],
    text: Callable[[int], str],
) -> tuple[tuple[Need, ...], tuple[str, ...]]:
    """Return what is too much of each resource, and a sentence for each that anything is requested of.

    Args:
        requested: in the order in which resources are reported.
        allocatable: absent is 0: then all that is requested is the need.
        percents: threshold and lower mark, of what is allocatable.
        need_of: makes a need of the resource, what is to be released, what is requested and what is allocatable.
        text: an amount for people.
    """
    threshold, lower = percents
    needs: list[Need] = []
    sentences: list[str] = []
    for resource, asked in requested.items():
        has = allocatable.get(resource, 0)
        if not asked:
            continue
        if has <= 0:
            needs.append(need_of(resource, asked, asked, has))
            sentences.append(f"{text(asked)} of {resource} are requested and none is allocatable")
            continue
        percent = asked * 100 // has
        if asked * 100 <= threshold * has:
            sentences.append(f"{resource} requested at {percent} % ≤ {threshold} % of allocatable")
            continue
        need = asked - first_byte_at(lower, has)
        needs.append(need_of(resource, need, asked, has))
        sentences.append(f"{resource} requested at {percent} % > {threshold} % of allocatable, need {text(need)}")
    return tuple(needs), tuple(sentences)
