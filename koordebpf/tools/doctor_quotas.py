"""Which containers have a CPU quota above their limit: koordlet's CPU burst leaves them so."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from pathlib import Path

import msgspec

from koordebpf.act.writer.places import Places, Unusable, look
from koordebpf.attribution.owner import OwnerKind
from koordebpf.collect.node_watch import NodeWatch
from koordebpf.errors import ConfigError
from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.cgroup.hierarchy import find_controllers
from koordebpf.kernel.signals.interface import SignalSource
from koordebpf.kube.cache.objects import Pod
from koordebpf.report.http.local_socket import agent_socket, asked
from koordebpf.report.known import KnownObjects
from koordebpf.state.cpu_burst.above_limit import is_above_limit
from koordebpf.state.hooks.pods import hook_pod
from koordebpf.tools.pod_explain import known_originals

_SIGNAL = "CPU quotas"
_SHOWN = 3
_REMEDY = "Restart these pods, or write the quota of the limit into these files."
_COST = (
    "they keep it, also on an overloaded node and after the agent: what koordlet's CPU burst left raised counts as "
    "the container's own"
)


def quota_sources(watch: NodeWatch, run_dir: Path) -> list[SignalSource]:
    """Return a line on the quotas of the containers whose limits a running agent knows; [] where none runs or has pods.

    Of a container that the agent itself has raised it is the quota before that.
    """
    try:
        socket = agent_socket(run_dir)
        known = msgspec.json.decode(asked(socket, "known"), type=KnownObjects)
    except (ConfigError, OSError, http.client.HTTPException, msgspec.DecodeError):
        return []
    limits = {each: limit for pod in known.pods or () for each, limit in _limits(pod)}
    places, originals = Places(find_controllers()), known_originals(socket.parent, run_dir)
    quotas, above = 0, list[str]()
    for owner in filter(None, (watch.index.owner(each) for each in watch.index)):
        if owner.kind is not OwnerKind.CONTAINER or not (named := limits.get(owner.container_id or "")):
            continue
        key, (name, limit_millicpu) = (owner.path.strip("/"), CgroupFile.CPU_QUOTA), named
        try:
            held, period = look(places, key, 0), look(places, (key[0], CgroupFile.CPU_PERIOD), 0).value
        except Unusable:
            continue
        original = originals.get(key)
        is_ours = original is not None and original.inode == held.inode
        quota = places.parse(key, original.text) if original is not None and is_ours else held.value
        if not isinstance(quota, int) or not isinstance(period, int):
            continue
        quotas += 1
        if is_above_limit(quota, period, limit_millicpu):
            above.append(f"{name} has {quota} of {period} µs for a limit of {limit_millicpu}m")
    if not quotas:
        return []
    if not above:
        return [SignalSource(_SIGNAL, f"none of {quotas} is above its container's limit", works=True)]
    how = f"{len(above)} of {quotas} are above their containers' limits"
    reason = "; ".join(sorted(above)[:_SHOWN]) + ("; …" if len(above) > _SHOWN else "")
    return [SignalSource(_SIGNAL, how, True, reason, _REMEDY, _COST)]


def _limits(pod: Pod) -> Iterator[tuple[str, tuple[str, int]]]:
    made = hook_pod(pod, "")
    for each in made.containers:
        if each.id and each.cpu_limit_millicpu > 0:
            yield each.id, (f"{made.key} {each.name}", each.cpu_limit_millicpu)
