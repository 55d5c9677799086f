"""Which CPUs a number of reserved CPUs stands for. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from koordebpf.state.node_info import Processor

Place = Callable[[Processor], int]


def take_by_topology(processors: Iterable[Processor], count: int) -> tuple[int, ...]:
    """Return `count` CPUs as kubelet's static policy chooses them, ascending: whole sockets, whole cores, single CPUs.

    All of them where there are not so many; then koordlet takes none.

    Source:  k8s.io/kubernetes pkg/kubelet/cm/cpumanager/cpu_assignment.go, takeByTopologyNUMAPacked.
    """
    every = tuple(sorted(processors, key=lambda each: each.cpu))
    taken: list[Processor] = []
    for place in (_socket, _core):
        size = len(every) // max(len({place(each) for each in every}), 1)
        for group in _free_groups(every, taken, place):
            if count - len(taken) >= size:
                taken += group
    left = [each for each in every if each not in taken]
    sockets = {each.socket for each in taken}
    left.sort(
        key=lambda each: (
            each.socket not in sockets,
            sum(one.socket == each.socket for one in left),
            sum(one.core == each.core for one in left),
            each.socket,
            each.core,
            each.cpu,
        )
    )
    taken += left[: max(count - len(taken), 0)]
    return tuple(sorted(each.cpu for each in taken))


def _socket(each: Processor) -> int:
    return each.socket


def _core(each: Processor) -> int:
    return each.core


# Those of which no CPU is taken; of cores, first those of the socket that has the fewest free ones.
def _free_groups(every: tuple[Processor, ...], taken: list[Processor], place: Place) -> list[list[Processor]]:
    used = {place(each) for each in taken}
    groups: dict[int, list[Processor]] = {}
    for each in every:
        if place(each) not in used:
            groups.setdefault(place(each), []).append(each)
    free_on: dict[int, int] = {}
    for group in groups.values():
        free_on[group[0].socket] = free_on.get(group[0].socket, 0) + len(group)
    return sorted(groups.values(), key=lambda group: (free_on[group[0].socket], group[0].socket, place(group[0])))
