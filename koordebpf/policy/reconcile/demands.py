"""What all strategies together want of each file: one value, by a rule for each kind of file. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koordebpf.kernel.cgroup.files import CgroupFile, Value
from koordebpf.kernel.cgroup.tables import Table, tighter
from koordebpf.policy.reconcile.values import DesiredState, FileKey, wanted_values

# The tightest limit wins: each strategy's promise holds.
_LIMITS = frozenset({CgroupFile.CPU_QUOTA, CgroupFile.MEMORY_LIMIT, CgroupFile.MEMORY_HIGH})

# A burst is meant to be above the limit that the other keeps: where both want a quota, that of the burst counts.
_BURST, _BELOW_BURST = "cpuBurst", "cpuNormalization"


class Demand(msgspec.Struct, frozen=True, gc=False):
    """The value that a file is to hold, and the strategies that want it; the first one's value is the one that wins."""

    value: Value
    owners: tuple[str, ...]


def joined(states: Mapping[str, DesiredState]) -> dict[FileKey, Demand]:
    """Return what the strategies together want of each file; `states` by the strategy's name.

    Of two limits the tighter one wins, of each device where a file has one for each; a cgroup is frozen where any
    strategy wants it frozen. Of every other file the first strategy in the order of `states` has it: a set of CPUs, a
    weight or a sysctl has no value that keeps two promises.

    A CPU burst is above the quota that CPUNormalization keeps, and has it for as long as it lasts.

    Raises:  ConfigError: a value that its file cannot hold.
    """
    demands: dict[FileKey, Demand] = {}
    wanted = {owner: wanted_values(state) for owner, state in states.items()}
    bursts = wanted.get(_BURST, {})
    for owner, values in wanted.items():
        for key, own in values.items():
            value = bursts.get(key, own) if owner == _BELOW_BURST and key[1] is CgroupFile.CPU_QUOTA else own
            other = demands.get(key)
            demands[key] = Demand(value, (owner,)) if other is None else _both(key, other, value, owner)
    return demands


def owners_of(key: FileKey, demands: Mapping[FileKey, Demand]) -> tuple[str, ...]:
    """Return the strategies that have a file written: those that want it, else those that want the quota above it."""
    path, file = key
    while (demand := demands.get((path, file))) is None and path:
        path = path.rpartition("/")[0]
    return demand.owners if demand else ()


def _both(key: FileKey, demand: Demand, value: Value, owner: str) -> Demand:
    _, file = key
    if value == demand.value:
        return Demand(value, (*demand.owners, owner))
    if isinstance(value, Table) and isinstance(demand.value, Table):
        return Demand(tighter(demand.value, value), (*demand.owners, owner))
    if file in _LIMITS:
        wins = value is not None and (demand.value is None or _number(value) < _number(demand.value))
    elif file is CgroupFile.FREEZE:
        wins = _number(value) > _number(demand.value)
    else:
        wins = False
    return Demand(value, (owner, *demand.owners)) if wins else Demand(demand.value, (*demand.owners, owner))


def _number(value: Value) -> int:
    assert isinstance(value, int)  # as wanted_values saw to
    return value
