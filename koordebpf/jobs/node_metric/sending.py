"""When a report of the node is sent, what of it, and what follows from the answer. Pure.

A report is sent when something in it has moved, and often enough that the one that the server has never gets too old.
It is a patch of the version that is known: one that arrives late is refused, and never replaces a newer one.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from koordebpf.errors import ConfigError
from koordebpf.jobs.node_metric.render import GPU_MEMORY
from koordebpf.jobs.node_metric.values import NodeMetricSettings
from koordebpf.kube.cache.store import is_older
from koordebpf.kube.colocation.node_metrics import ManagedFields, OwnNodeMetric
from koordebpf.quantity import quantity_bytes, quantity_millicpu
from koordebpf.units import NS_PER_S

INTERVALS: Final = 2  # without a report of its own, after which it counts as ended
Json = dict[str, Any]
# The fields that are the key of a list's entry.
KEYS: Final[dict[str, tuple[str, ...]]] = {
    "podsMetric": ("namespace", "name"),
    "hostApplicationMetric": ("name",),
    "aggregatedNodeUsages": ("duration",),
    "aggregatedSystemUsages": ("duration",),
    "numaUsages": ("numaNodeID",),
    "devices": ("id",),
}
_TOTALS: Final = frozenset({"nodeUsage", "prodReclaimableMetric", "prodPeakMetric"})
_BURST: Final = 2  # writes …
_BURST_NS: Final = 20 * NS_PER_S  # … within this. Why: koordlet's limiter, 0.1/s with a burst of 2
_TRIED: Final = 16
_FIRST_TIMEOUT_S: Final = 15.0  # Why: of the minute that is left when nothing moved, for three tries
_LONGEST_TIMEOUT_S: Final = 60.0
_CUT: Final = 0.9  # of its time, after which a failure is one of time
_LATE: Final = 10  # a tenth of its period is no lateness: all that is due shares its wake-ups
_SLOW_TIMES: Final = 3.0  # of what the last answer took
Held = Literal["unread", "absent", "other", "quiet", "pace"]


# Whether another program writes the status of this node's NodeMetric: koordlet, as a rule. Pure.
#
# The API server notes who wrote last, and when, in metadata.managedFields. Its clock and the node's may differ: after
# the first look only changes count, by the node's own clock.


class OtherWriter:
    """Remembers when another program has reported last.

    Args:
        manager: the name under which this agent writes, and agents before it wrote.
    """

    def __init__(self, manager: str) -> None:
        self.name = ""  # of the other one
        self.last_ns: int | None = None  # when it was seen to report
        self._manager = manager
        self._own: deque[str] = deque(maxlen=16)  # times of reports that this agent sent, with an answer or without
        self._update_time: str | None = None
        self._written = ""  # when the other one wrote, by the API server's clock
        self._has_looked = False

    def sent(self, update_time: str) -> None:
        """Note that this agent sends a report of that time; it may arrive late, or without an answer."""
        self._own.append(update_time)

    def observe(self, found: OwnNodeMetric, now_ns: int, wall_s: float, interval_ns: int) -> None:
        """Take note of what the server has now."""
        is_first, self._has_looked = not self._has_looked, True
        time = found.update_time
        if time is None or time == self._update_time:
            return
        self._update_time = time
        if time in self._own:
            return
        # Times are in whole seconds: in one with both, the report that this agent did not send is the other's.
        newest = max(
            (each for each in found.metadata.managedFields if each.subresource == "status"),
            key=lambda each: (each.time, each.manager != self._manager),
            default=ManagedFields(),
        )
        if newest.manager in ("", self._manager) or newest.time == self._written:
            return
        self._written = newest.time
        if is_first and wall_s - _seconds(newest.time) > INTERVALS * interval_ns / NS_PER_S:
            return
        self.name, self.last_ns = newest.manager, now_ns

    def is_active(self, now_ns: int, interval_ns: int) -> bool:
        """Tell whether it has reported within two intervals, so that the object is left to it."""
        return self.last_ns is not None and now_ns < self.until_ns(interval_ns)

    def until_ns(self, interval_ns: int) -> int:
        """Return when the object is no longer left to it, if it reports no more."""
        return (self.last_ns or 0) + INTERVALS * interval_ns


# Of a time that cannot be read: long ago.
def _seconds(time: str) -> float:
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        return 0.0


# Which values of a new status are worth sending: those that moved, and as many more as sums need. Pure.
#
# What did not move stays as the server has it, so that each value is right within its limit, and so is the sum of all
# pods of a priority class: small errors of many pods in one direction do not add up.


class Limits(msgspec.Struct, frozen=True):
    """How far a value may be off: a share of it, or so much, whichever is more."""

    ratio: float
    total_ratio: float
    millicpu: float = 0.0
    memory_bytes: float = 0.0

    def least(self, resource: str) -> float:
        """Return how far a value of this resource may be off, however small it is; of percentages by nothing."""
        return {"cpu": self.millicpu, "memory": self.memory_bytes, GPU_MEMORY: self.memory_bytes}.get(resource, 0.0)


def limits(settings: NodeMetricSettings, capacity_millicpu: int, capacity_bytes: int) -> Limits:
    """Return the limits on a node of this capacity; 0: not known."""
    ignored = settings.ignored_percent / 100
    return Limits(
        ratio=settings.moved_percent / 100,
        total_ratio=settings.total_percent / 100,
        millicpu=capacity_millicpu * ignored,
        memory_bytes=capacity_bytes * ignored,
    )


def settled(base: Json, new: Json, within: Limits) -> Json:
    """Return `new` with each value that did not move as `base` has it.

    Cost:    0.6 ms for 110 pods.
    """
    made: Json = _merged(base, new, within, within.ratio)
    if isinstance(made.get("podsMetric"), list):
        made["podsMetric"] = _with_right_sums(made["podsMetric"], new["podsMetric"], within)
    return made


def key_of(entry: Any, names: Iterable[str]) -> tuple[Any, ...] | None:
    """Return the key of a list's entry, from the fields of these names; None: it has none."""
    if not isinstance(entry, dict):
        return None
    key = tuple(entry.get(name) for name in names)
    return key if all(isinstance(part, str | int) for part in key) else None


def _merged(base: Any, new: Any, within: Limits, ratio: float) -> Any:
    if not isinstance(base, dict) or not isinstance(new, dict):
        return new
    made: Json = {}
    for name, value in new.items():
        below = base.get(name)
        if below == value:
            made[name] = value
        elif name == "resources" and isinstance(value, dict) and isinstance(below, dict):
            made[name] = _resources(below, value, within, ratio)
        elif name in KEYS and isinstance(value, list) and isinstance(below, list):
            by_key = {key_of(entry, KEYS[name]): entry for entry in below}
            made[name] = [_merged(by_key.get(key_of(each, KEYS[name])), each, within, ratio) for each in value]
        else:
            made[name] = _merged(below, value, within, within.total_ratio if name in _TOTALS else ratio)
    return made


def _resources(base: Json, new: Json, within: Limits, ratio: float) -> Json:
    return {name: _kept(name, base.get(name), value, within, ratio) for name, value in new.items()}


def _kept(name: str, before: Any, now: str, within: Limits, ratio: float) -> str:
    if before == now or not isinstance(before, str):
        return now
    old, new = _number(name, before), _number(name, now)
    least = within.least(name)
    return now if old is None or new is None or abs(new - old) > max(least, old * ratio) else before


# None: of another writer, who may write anything.
def _number(name: str, written: Any) -> int | None:
    if not isinstance(written, str):
        return None
    # As most are written; the way through decimals takes ten times as long.
    if name == "cpu" and written.endswith("m") and written[:-1].isdecimal():
        return int(written[:-1])
    if name != "cpu" and written.isdecimal():
        return int(written)
    try:
        return quantity_millicpu(written) if name == "cpu" else quantity_bytes(written)
    except ConfigError:
        return None


def _with_right_sums(made: list[Json], new: list[Json], within: Limits) -> list[Json]:
    errors: dict[tuple[Any, str], list[tuple[int, int]]] = defaultdict(list)  # class and resource → error, index
    sums: dict[tuple[Any, str], int] = defaultdict(int)
    for index, (mine, exact) in enumerate(zip(made, new, strict=True)):
        kept: Json = mine["podUsage"].get("resources", {})
        for name, now in exact["podUsage"].get("resources", {}).items():
            of = exact.get("priority"), name
            number = _number(name, now) or 0
            sums[of] += number
            if kept[name] != now and (before := _number(name, kept[name])) is not None:
                errors[of].append((before - number, index))
    out = list(made)
    for (priority, name), found in errors.items():
        off = sum(error for error, _ in found)
        allowed = sums[priority, name] * within.total_ratio
        # The largest first, and only those that are wrong in the direction of the sum.
        for error, index in sorted(found, reverse=off > 0):
            if abs(off) <= allowed:
                break
            usage = {**out[index]["podUsage"]}
            usage["resources"] = usage["resources"] | {name: new[index]["podUsage"]["resources"][name]}
            out[index] = out[index] | {"podUsage": usage}
            off -= error
    return out


# The shortest JSON Patch from the status that the server has to the one that it should have. Pure.
#
# A merge patch replaces a list as a whole, and podsMetric is most of a NodeMetric; a JSON Patch replaces one value of
# one pod. Places in a list are numbers, so that a patch is right for one version of the object alone: it names that
# version, and the server refuses it (409) where another wrote meanwhile.
#
# Source: RFC 6902; k8s.io/apiserver pkg/endpoints/handlers/patch.go.


def status_patch(version: str, base: Any, target: Json) -> bytes:
    """Return the patch of `/status`, from `base` at that resourceVersion to `target`; base None: there is none.

    Cost:    0.3 ms for 110 pods.
    """
    guard = _operation("replace", "/metadata/resourceVersion", version)
    changes = [_operation("add", "/status", target)]
    if isinstance(base, dict):
        changes = _shorter(_changes("/status", base, target), changes)
    return b"[" + b",".join([guard, *changes]) + b"]"


def dropped_fields(sent: Any, found: Any) -> frozenset[tuple[str, ...]]:
    """Return the fields that the server did not keep, each as a path in which `*` is any entry of a list.

    An older definition of NodeMetric lacks fields, and the API server drops what the definition lacks.
    """
    if isinstance(sent, dict) and isinstance(found, dict):
        lost = {(name,) for name in sent if name not in found}
        below = ((name, dropped_fields(value, found[name])) for name, value in sent.items() if name in found)
        return frozenset(lost | {(name, *path) for name, paths in below for path in paths})
    if isinstance(sent, list) and isinstance(found, list) and len(sent) == len(found):
        pairs = zip(sent, found, strict=True)
        return frozenset(("*", *path) for mine, theirs in pairs for path in dropped_fields(mine, theirs))
    return frozenset()


def without(value: Any, fields: frozenset[tuple[str, ...]]) -> Any:
    """Return a value without these fields, as `dropped_fields` names them."""
    if not fields:
        return value
    if isinstance(value, list):
        below = frozenset(path[1:] for path in fields if path[0] == "*")
        return [without(each, below) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        name: without(each, frozenset(path[1:] for path in fields if path[0] == name and len(path) > 1))
        for name, each in value.items()
        if (name,) not in fields
    }


def _changes(path: str, base: Any, target: Any) -> list[bytes]:
    if base == target:
        return []
    whole = [_operation("replace", path, target)]
    if isinstance(base, dict) and isinstance(target, dict):
        return _shorter(_of_object(path, base, target), whole)
    if isinstance(base, list) and isinstance(target, list):
        names = KEYS.get(path.rpartition("/")[2])
        parts = _of_list(path, base, target, names) if names else None
        return whole if parts is None else _shorter(parts, whole)
    return whole


def _of_object(path: str, base: Json, target: Json) -> list[bytes]:
    changes = [_removal(f"{path}/{_escaped(name)}") for name in base if name not in target]
    for name, value in target.items():
        at = f"{path}/{_escaped(name)}"
        changes += _changes(at, base[name], value) if name in base else [_operation("add", at, value)]
    return changes


# None: an entry has no key or that of another, or they are in another order.
def _of_list(path: str, base: list[Any], target: list[Any], names: tuple[str, ...]) -> list[bytes] | None:
    before, after = [key_of(each, names) for each in base], [key_of(each, names) for each in target]
    known, wanted = set(before), set(after)
    if None in known | wanted or len(known) < len(before) or len(wanted) < len(after):
        return None
    if [key for key in before if key in wanted] != [key for key in after if key in known]:
        return None
    # From the end, so that the places of those before stay.
    changes = [_removal(f"{path}/{place}") for place in reversed(range(len(base))) if before[place] not in wanted]
    there = dict(zip(before, base, strict=True))
    for place, (key, value) in enumerate(zip(after, target, strict=True)):
        at = f"{path}/{place}"
        changes += _changes(at, there[key], value) if key in there else [_operation("add", at, value)]
    return changes


def _shorter(parts: list[bytes], whole: list[bytes]) -> list[bytes]:
    return parts if sum(map(len, parts)) + len(parts) <= sum(map(len, whole)) + len(whole) else whole


def _operation(op: str, path: str, value: Any) -> bytes:
    return msgspec.json.encode({"op": op, "path": path, "value": value})


def _removal(path: str) -> bytes:
    return msgspec.json.encode({"op": "remove", "path": path})


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


class Report(msgspec.Struct, frozen=True):
    """One report as it was rendered: `status` of the moment `now_ns`.

    `interval_ns`  between reports, as the policy has it.
    `period_ns`    until the next one is rendered.
    """

    now_ns: int
    status: Json
    interval_ns: int
    period_ns: int
    within: Limits


class Send(msgspec.Struct, frozen=True):
    """A patch that is to be sent now, within `timeout_s`; `target` is the status that it makes."""

    body: bytes
    timeout_s: float
    target: Json
    of: Report
    version: str


class Hold(msgspec.Struct, frozen=True):
    """Nothing is to be sent now. `again_ns`: look again then; None: once there is a new report or object."""

    why: Held
    again_ns: int | None = None


class Sending:
    """What is known of the server's object, and what was sent.

    Args:
        settings: of the report.
        other: watches for another writer.
    """

    def __init__(self, settings: NodeMetricSettings, other: OtherWriter) -> None:
        self.other = other
        self.sent_ns: int | None = None  # moment of the report that the server has; None: it has none of this agent
        self._settings = settings
        self._found: OwnNodeMetric | None = None
        self._is_read = False
        self._watched = ""  # the version that the watch had last
        self._dropped: frozenset[tuple[str, ...]] = frozenset()
        self._writes_ns: deque[int] = deque(maxlen=_BURST)
        self._timeout_s = _FIRST_TIMEOUT_S
        self._refused = ""  # a version that another one replaced
        self._tried: deque[tuple[str, int]] = deque(maxlen=_TRIED)  # updateTime and moment of reports that were sent

    def found(self, metric: OwnNodeMetric | None, now_ns: int, wall_s: float, interval_ns: int) -> None:
        """Take what the watch says that the server has, None: no NodeMetric of this node.

        A version that is older than an answer is one that the watch has not caught up with. Where the watch itself has
        gone back, the server has: etcd was restored.
        """
        self._is_read = True
        known, watched = self._found, self._watched
        self._watched = metric.metadata.resourceVersion if metric is not None else ""
        if metric is None or known is None or known.metadata.uid != metric.metadata.uid:
            self._found = metric
            if metric is None or known is not None:
                self.sent_ns = None
        elif is_older(self._watched, watched) or not is_older(self._watched, known.metadata.resourceVersion):
            self._found = metric
        else:
            return
        if metric is not None:
            # One that was sent without an answer may be there all the same.
            arrived = [moment_ns for time, moment_ns in self._tried if time == metric.update_time]
            self.sent_ns = max(arrived, default=self.sent_ns)
            self.other.observe(metric, now_ns, wall_s, interval_ns)

    def step(self, report: Report, now_ns: int) -> Send | Hold:
        """Return what is to be done with the newest report."""
        found = self._found
        if not self._is_read:
            return Hold("unread")
        if found is None:
            return Hold("absent")
        if self.other.is_active(now_ns, report.interval_ns):
            self.sent_ns = None
            return Hold("other", self.other.until_ns(report.interval_ns))
        if found.metadata.resourceVersion == self._refused:
            return Hold("unread")
        target = without(settled(found.status or {}, report.status, report.within), self._dropped)
        if not self._is_worth_it(report, found.status, target):
            return Hold("quiet")
        if len(self._writes_ns) == _BURST and now_ns < (again_ns := self._writes_ns[0] + _BURST_NS):
            return Hold("pace", again_ns)
        version = found.metadata.resourceVersion
        return Send(status_patch(version, found.status, target), self._timeout_s, target, report, version)

    def starts(self, send: Send, now_ns: int) -> None:
        """Note that it is being sent. One that is tried again has a pace of its own."""
        if not self._tried or self._tried[-1][1] != send.of.now_ns:
            self._writes_ns.append(now_ns)
        self._tried.append((send.target["updateTime"], send.of.now_ns))
        self.other.sent(send.target["updateTime"])

    def answered(self, send: Send, got: OwnNodeMetric, took_ns: int) -> None:
        """Take the object as it is after the patch."""
        known = self._found
        if known is None or not is_older(got.metadata.resourceVersion, known.metadata.resourceVersion):
            self._found = got
        self.sent_ns = send.of.now_ns
        self._dropped |= dropped_fields(send.target, got.status) - {("updateTime",)}
        # A quick answer between slow ones proves little.
        wanted_s = max(_FIRST_TIMEOUT_S, took_ns / NS_PER_S * _SLOW_TIMES, self._timeout_s / 2)
        self._timeout_s = min(wanted_s, _LONGEST_TIMEOUT_S)

    def conflicted(self, send: Send) -> None:
        """Wait for a version that is newer than the one the patch was of."""
        self._refused = send.version

    def failed(self, send: Send, took_ns: int) -> bool:
        """Return whether it was cut off. The next try has more time then: a slow server answers none that is cut."""
        is_cut = took_ns >= send.timeout_s * NS_PER_S * _CUT
        if is_cut:
            self._timeout_s = min(send.timeout_s * 2, _LONGEST_TIMEOUT_S)
        return is_cut

    # The next report comes after a period: what would be too old by then is sent now. A server that takes long to
    # answer is given that time.
    def _is_worth_it(self, report: Report, base: Any, target: Json) -> bool:
        if self.sent_ns is None or not isinstance(base, dict):
            return True
        if report.now_ns <= self.sent_ns:
            return False
        if {**base, "updateTime": ""} != {**target, "updateTime": ""}:
            return True
        slow_ns = int((self._timeout_s - _FIRST_TIMEOUT_S) / _SLOW_TIMES * NS_PER_S)
        age_ns = max(report.now_ns - self.sent_ns, _between_ns(base.get("updateTime"), target["updateTime"]))
        next_age_ns = age_ns + report.period_ns
        return next_age_ns > self._settings.quiet_ns + report.period_ns // _LATE - slow_ns


# By the node's clock, as consumers judge it: a machine that was suspended, or a clock that was set, makes a report old.
def _between_ns(before: Any, after: str) -> int:
    try:
        return int((datetime.fromisoformat(after) - datetime.fromisoformat(before)).total_seconds() * NS_PER_S)
    except (TypeError, ValueError):
        return 0
