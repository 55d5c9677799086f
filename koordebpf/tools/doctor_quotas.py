"""Which containers have a CPU quota above their limit: koordlet's CPU burst raises them, and leaves them so."""

from __future__ import annotations

import http.client
from pathlib import Path

import msgspec

from koordebpf.act.writer.places import Original, Places, Unusable, look
from koordebpf.attribution.owner import OwnerKind
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.errors import ConfigError
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.kernel.signals.interface import SignalSource
from koordebpf.kube.cache.objects import Pod
from koordebpf.policy.reconcile.values import FileKey
from koordebpf.report.http.local_socket import agent_socket, asked
from koordebpf.report.known import KnownObjects
from koordebpf.strategies.cpu_burst.values import is_above_limit, written_limits
from koordebpf.tools.pod_explain import known_originals

_SIGNAL = "CPU quotas"
_SHOWN = 3
_REMEDY = (
    "If no koordlet runs here, which would raise them now: restart these pods, or write the quota of the limit into "
    "these files."
)
_COST = (
    "they keep it, also on an overloaded node and after the agent: what koordlet's CPU burst left raised counts as "
    "the container's own"
)
_KOORDLET = "koordlet"  # the value of its pods' label koord-app, and the name of their container


class Quotas(msgspec.Struct, frozen=True):
    """One reading: how many quotas were compared, and of the cgroups above their limits a sentence each."""

    compared: int
    above: dict[str, str]
    has_koordlet: bool


def quota_notes(watch: NodeWatch, run_dir: Path) -> list[SignalSource]:
    """Return a line on the quotas of the containers whose limits a running agent knows; [] where none runs or has pods.

    Of a container that the agent itself has raised it is the quota before that. Agent, kubelet and runtime may write
    between two looks: what one reading finds above its limit has to be so in the next one.
    """
    read = _read(watch, run_dir)
    if read is not None and read.above:
        again = _read(watch, run_dir)
        above = {path: found for path, found in again.above.items() if path in read.above} if again else {}
        read = msgspec.structs.replace(again, above=above) if again else None
    if read is None or not read.compared:
        return []
    if not (above := read.above):
        return [SignalSource(_SIGNAL, f"none of {read.compared} is above its container's limit", works=True)]
    how = f"{len(above)} of {read.compared} are above their containers' limits"
    if read.has_koordlet:
        return [SignalSource(_SIGNAL, f"{how}: koordlet runs here, whose CPU burst raises and lowers them", works=True)]
    reason = "; ".join(sorted(above.values())[:_SHOWN]) + ("; …" if len(above) > _SHOWN else "")
    return [SignalSource(_SIGNAL, how, True, reason, _REMEDY, _COST)]


# None: no agent answers.
def _read(watch: NodeWatch, run_dir: Path) -> Quotas | None:
    try:
        socket = agent_socket(run_dir)
        pods = msgspec.json.decode(asked(socket, "known"), type=KnownObjects).pods or ()
    except (ConfigError, OSError, http.client.HTTPException, msgspec.DecodeError):
        return None
    limits = {each.container_id: each for pod in pods for each in written_limits(pod)}
    places, originals = Places(find_controllers()), known_originals(socket.parent, run_dir)
    compared, above = 0, dict[str, str]()
    for owner in filter(None, (watch.index.owner(each) for each in watch.index)):
        if owner.kind is not OwnerKind.CONTAINER or not (limit := limits.get(owner.container_id or "")):
            continue
        path = owner.path.strip("/")
        if (found := _quota_and_period(places, path, originals)) is None:
            continue
        compared += 1
        quota, period = found
        if is_above_limit(quota, period, limit.millicpu):
            above[path] = f"{limit.name} has {quota} of {period} µs for a limit of {limit.millicpu}m"
    return Quotas(compared, above, any(map(_is_koordlet, pods)))


def _quota_and_period(places: Places, path: str, originals: dict[FileKey, Original]) -> tuple[int, int] | None:
    key = (path, CgroupFile.CPU_QUOTA)
    try:
        held, period = look(places, key, 0), look(places, (path, CgroupFile.CPU_PERIOD), 0).value
    except Unusable:
        return None
    original = originals.get(key)
    is_ours = original is not None and original.inode == held.inode
    quota = places.parse(key, original.text) if original is not None and is_ours else held.value
    return (quota, period) if isinstance(quota, int) and isinstance(period, int) else None


def _is_koordlet(pod: Pod) -> bool:
    if pod.status.phase != "Running":
        return False
    is_labelled = (pod.metadata.labels or {}).get("koord-app") == _KOORDLET
    return is_labelled or any(each.name == _KOORDLET for each in pod.spec.containers)
