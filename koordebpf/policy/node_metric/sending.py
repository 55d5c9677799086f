"""When a report of the node is sent, what of it, and what follows from the answer. Pure.

A report is sent when something in it has moved, and often enough that the one that the server has never gets too old.
It is a patch of the version that is known: one that arrives late is refused, and never replaces a newer one.
"""

from __future__ import annotations

from collections import deque
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from koordebpf.kube.cache.own_node_metric import OwnNodeMetric
from koordebpf.kube.cache.store import is_older
from koordebpf.policy.node_metric.other_writer import OtherWriter
from koordebpf.policy.node_metric.settings import NodeMetricSettings
from koordebpf.policy.node_metric.settled import KEYS, Limits, key_of, settled
from koordebpf.units import NS_PER_S

Json = dict[str, Any]
_BURST: Final = 2  # writes …
_BURST_NS: Final = 20 * NS_PER_S  # … within this. Why: koordlet's limiter, 0.1/s with a burst of 2
_TRIED: Final = 16
_FIRST_TIMEOUT_S: Final = 15.0  # Why: of the minute that is left when nothing moved, for three tries
_LONGEST_TIMEOUT_S: Final = 60.0
_CUT: Final = 0.9  # of its time, after which a failure is one of time
_LATE: Final = 10  # a tenth of its period is no lateness: all that is due shares its wake-ups
_SLOW_TIMES: Final = 3.0  # of what the last answer took
Held = Literal["unread", "absent", "other", "quiet", "pace"]


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
            self.other.look(metric, now_ns, wall_s, interval_ns)

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
