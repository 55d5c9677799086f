"""Makes the NodeSLOs of a cluster what they should be, and writes only where they are not.

One request at a time: an API server that is slow is not asked faster. What fails for one object waits on its own; what
would fail for all ends the round.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from koordebpf.controller.settings import Settings
from koordebpf.errors import KubeBusy, KubeConflict, KubeDenied, KubeError
from koordebpf.kube.cache.store import is_older
from koordebpf.kube.clients.nodeslos import ControllerState, NodeMeta, NodeSLO, NodeSLOMeta, Owner
from koordebpf.kube.http.refusal import Backoff
from koordebpf.slo.manager.effective import effective_spec
from koordebpf.units import NS_PER_S

if TYPE_CHECKING:
    from koordebpf.kube.colocation.writes import WrittenMetric

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
OURS: Final = "koordebpf-controller"
# A write shows in the watch within milliseconds, and a watch that was cut is back within seconds. After this the watch
# is believed, whatever the answer to the write was.
_TRUST_NS: Final = 30 * NS_PER_S
_NEWS_NS: Final = _TRUST_NS  # Why: a conflict before the watch has shown what is newer would be the same one again
# Why up to 5 min: another that writes the same object, a person or a manager, is not fought at the speed of the watch.
_KEPT_FIRST_S, _KEPT_CAP_S = 0.2, 300.0
_Looked = tuple[NodeMeta, NodeSLO | None, Settings]
_Conflict = tuple[str, int]  # resourceVersion of what was not the newest, "": no object; not to be written before
log = logging.getLogger("koordebpf")
_SLICE_NS: Final = 5 * NS_PER_S  # then the loop looks at what changed meanwhile
_FIRST_S, _CAP_S = 0.5, 30.0
# RBAC is fixed by people; but an API server that has just started says 403 until it has read its roles.
_DENIED_FIRST_S, _DENIED_CAP_S = 5.0, 60.0
_MAX_PROBLEMS: Final = 5  # sentences; a thousand objects may fail for the same reason


def is_ours(obj: NodeSLO | WrittenMetric) -> bool:
    """Tell whether this controller made the object; koord-manager's have no such label."""
    return (obj.metadata.labels or {}).get(MANAGED_BY) == OURS


def owned_by(node: NodeMeta, current: NodeSLOMeta | None) -> NodeSLOMeta:
    """Return the metadata of a Node's object, made from `current` so that others' labels and annotations stay.

    It is owned by its Node: when that is deleted, garbage collection deletes it, also while no controller runs,
    and a list of Nodes that is wrong can never delete anything.
    """
    meta = current or NodeSLOMeta(name=node.name)
    owner = Owner(apiVersion="v1", kind="Node", name=node.name, uid=node.uid)
    others = tuple(each for each in meta.ownerReferences if each.kind != "Node")
    return msgspec.structs.replace(
        meta, labels={**(meta.labels or {}), MANAGED_BY: OURS}, ownerReferences=(owner, *others)
    )


def desired_nodeslo(node: NodeMeta, current: NodeSLO | None, settings: Settings) -> NodeSLO:
    """Return the object as it should be, made from `current`."""
    has = current.spec if current is not None and isinstance(current.spec, dict) else None
    spec = effective_spec(settings.keys, node.labels or {}, node.annotations, has)
    return NodeSLO(owned_by(node, current.metadata if current else None), spec)


class Keeper:
    """One Node's NodeSLO. Time is an argument, and nothing here sends a request.

    Attributes:
        problem: why the object is not as it should be; empty: it is, or was not tried yet.
        due_ns: not to be written before.
        overwritten: how often another changed what was written.
    """

    def __init__(self) -> None:
        self.problem = ""
        self.due_ns = 0
        self.overwritten = 0
        self._looked: tuple[_Looked, NodeSLO | None] | None = None  # at these, and this was wanted
        self._sent: NodeSLO | None = None
        self._answer: NodeSLO | None = None
        self._answered_ns = 0
        self._is_seen = True  # the watch has delivered the answer
        self._failures = Backoff(_KEPT_FIRST_S, _KEPT_CAP_S)
        self._fights = Backoff(_KEPT_FIRST_S, _KEPT_CAP_S)
        self._fought = ""  # resourceVersion of the other's last writing
        self._conflict: _Conflict | None = None  # of the last write, until the watch shows what is newer

    def wanted(self, node: NodeMeta, seen: NodeSLO | None, settings: Settings, now_ns: int) -> NodeSLO | None:
        """Return the object that has to be written; None: it is there. `seen` is the watch's.

        Cost:   1 µs while none of the three is another object; else 0.2 ms.
        """
        current = self._newest(seen, now_ns)
        looked = (node, current, settings)
        if self._looked is not None and all(a is b for a, b in zip(self._looked[0], looked, strict=True)):
            return self._looked[1]
        wanted = desired_nodeslo(node, current, settings)
        if self._conflict is not None and _version(current) != self._conflict[0]:
            self.due_ns, self._conflict = self._conflict[1], None
        is_there = wanted == current or self._is_all_the_server_keeps(wanted, current)
        if is_there:
            self.problem = ""
        elif current is not None:
            self._record_another(wanted, current, now_ns)
        self._looked = (looked, None if is_there else wanted)
        return self._looked[1]

    def wrote(self, sent: NodeSLO, answer: NodeSLO, now_ns: int) -> bool:
        """Note a write that succeeded; False: the server keeps another spec than was sent."""
        self._sent, self._answer, self._answered_ns, self._is_seen = sent, answer, now_ns, False
        self._looked, self._conflict, self.problem, self.due_ns = None, None, "", 0
        self._failures.reset()
        return bool(answer.spec == sent.spec)

    def failed(self, problem: str, now_ns: int) -> None:
        """Note a write that failed for this object alone; the next try comes later, and later each time."""
        self.problem, self._conflict = problem, None
        self.due_ns = now_ns + int(self._failures.next_s() * NS_PER_S)

    def conflicted(self, sent: NodeSLO, problem: str, now_ns: int) -> None:
        """Note that another wrote first: the next try waits until the watch shows what, for 30 s at most."""
        self.failed(problem, now_ns)
        self._conflict = (sent.metadata.resourceVersion, self.due_ns)
        self.due_ns = max(self.due_ns, now_ns + _NEWS_NS)

    # A write's answer is newer than the watch for a moment.
    def _newest(self, seen: NodeSLO | None, now_ns: int) -> NodeSLO | None:
        answer = self._answer
        if answer is None or self._is_seen:
            return seen
        is_behind = seen is None or is_older(seen.metadata.resourceVersion, answer.metadata.resourceVersion)
        self._is_seen = not is_behind or now_ns - self._answered_ns > _TRUST_NS
        return seen if self._is_seen else answer

    # A CRD that is not ours may set defaults and drop fields it does not know: writing again would change nothing.
    def _is_all_the_server_keeps(self, wanted: NodeSLO, current: NodeSLO | None) -> bool:
        if current is None or self._sent is None or self._answer is None:
            return False
        return (
            wanted.metadata == current.metadata and wanted.spec == self._sent.spec and current.spec == self._answer.spec
        )

    def _record_another(self, wanted: NodeSLO, current: NodeSLO, now_ns: int) -> None:
        version = _version(current)
        if self._sent is None or self._answer is None or version == self._fought:
            return
        if wanted.spec == self._sent.spec and current.spec != self._answer.spec:
            self._fought = version
            self.overwritten += 1
            self.due_ns = now_ns + int(self._fights.next_s() * NS_PER_S)
            self.problem = (
                f"NodeSLO {current.metadata.name} was changed by another; it is written again, later each time"
            )


def _version(nodeslo: NodeSLO | None) -> str:
    return nodeslo.metadata.resourceVersion if nodeslo else ""


class Writer(Protocol):
    """The two requests that change NodeSLOs; kube.clients.nodeslos.NodeSLOWriter has them."""

    def create(self, nodeslo: NodeSLO) -> NodeSLO:
        """Return the object as the server has it."""

    def update(self, nodeslo: NodeSLO) -> NodeSLO:
        """Put it in place of the version it was made from."""


class Round(msgspec.Struct, frozen=True):
    """What one round found.

    Attributes:
        settled: Nodes whose NodeSLO is as it should be.
        pending: Nodes whose NodeSLO is still to be written.
        foreign: NodeSLOs that another made.
        orphaned: ours without a Node, which Kubernetes' garbage collector takes away.
        problems: why what is pending was not written.
        due_ns: when to come back though nothing changes; None: never.
    """

    settled: int = 0
    pending: int = 0
    foreign: int = 0
    orphaned: int = 0
    problems: tuple[str, ...] = ()
    due_ns: int | None = None


class Tally(msgspec.Struct):
    """Requests since the start, by their outcome."""

    created: int = 0
    updated: int = 0
    conflicts: int = 0
    failures: int = 0


class Reconciler:
    """Remembers what it wrote.

    `adopts`: NodeSLOs that another made are taken over; else, while there is one, none is written, for a Koordinator
    manager that runs writes them all. In a dry run (`writer` None) each write is logged once, and not done.
    """

    def __init__(self, writer: Writer | None, *, adopts: bool, now_ns: Callable[[], int]) -> None:
        self.tally = Tally()
        self._writer = writer
        self._adopts = adopts
        self._now_ns = now_ns
        self._keepers: dict[str, Keeper] = {}
        self._logged: dict[str, NodeSLO] = {}
        self._backoff = Backoff(_FIRST_S, _CAP_S)
        self._denials = Backoff(_DENIED_FIRST_S, _DENIED_CAP_S)
        self._rests_until_ns = 0
        self._rest_problem = ""
        self._overwritten_gone = 0  # of Nodes that are gone

    @property
    def overwritten(self) -> int:
        """How often another changed what was written."""
        return self._overwritten_gone + sum(keeper.overwritten for keeper in self._keepers.values())

    def round(self, state: ControllerState, settings: Settings, may_write: Callable[[], bool]) -> Round:
        """Write what differs, as long as `may_write`; return what is left to do."""
        nodeslos = {each.metadata.name: each for each in state.nodeslos}
        names = {node.name for node in state.nodes}
        self._forget_all_but(names)
        foreign = [each.metadata.name for each in state.nodeslos if not is_ours(each)]
        orphaned = sum(name not in names and is_ours(each) for name, each in nodeslos.items())
        if foreign and not self._adopts:
            sentence = (
                f"{len(foreign)} of {len(nodeslos)} NodeSLOs, as {foreign[0]}, were made by another, perhaps a"
                " Koordinator manager that runs: none is written. Stop it and start this with --adopt, or do without"
            )
            return Round(pending=len(names), foreign=len(foreign), orphaned=orphaned, problems=(sentence,))
        now_ns = self._now_ns()
        differing: list[tuple[Keeper, NodeSLO]] = []
        unmade: list[Keeper] = []
        for node in state.nodes:
            keeper = self._keepers.get(node.name) or self._keepers.setdefault(node.name, Keeper())
            try:
                wanted = keeper.wanted(node, nodeslos.get(node.name), settings, now_ns)
            except Exception as error:  # one Node's problem must not stop the writes of all others
                keeper.problem = f"NodeSLO {node.name} cannot be made: {type(error).__name__}: {error}"
                unmade.append(keeper)
                continue
            if wanted is not None:
                differing.append((keeper, wanted))
        # First what was not tried yet: what has failed, and may end the round again, comes last.
        differing.sort(key=lambda each: each[0].due_ns)
        pending = [keeper for keeper, wanted in differing if not self._is_written(keeper, wanted, now_ns, may_write)]
        dues_ns = [max(keeper.due_ns, self._rests_until_ns) for keeper in pending]
        left = [*pending, *unmade]
        return Round(
            settled=len(state.nodes) - len(left),
            pending=len(left),
            foreign=len(foreign),
            orphaned=orphaned,
            problems=self._problems(left),
            due_ns=min(dues_ns) if dues_ns and self._writer else None,
        )

    def _is_written(self, keeper: Keeper, wanted: NodeSLO, began_ns: int, may_write: Callable[[], bool]) -> bool:
        now_ns = self._now_ns()
        is_time = max(keeper.due_ns, self._rests_until_ns) <= now_ns < began_ns + _SLICE_NS
        return is_time and may_write() and self._write(keeper, wanted)

    def _write(self, keeper: Keeper, wanted: NodeSLO) -> bool:
        meta = wanted.metadata
        verb = "update" if meta.resourceVersion else "create"
        if self._writer is None:
            if self._logged.get(meta.name) != wanted:
                self._logged[meta.name] = wanted
                spec = msgspec.json.encode(wanted.spec).decode()
                log.info("would %s NodeSLO %s: %s", verb, meta.name, spec)
            return False
        try:
            answer = self._writer.update(wanted) if verb == "update" else self._writer.create(wanted)
        except KubeConflict as error:
            # The watch brings what is newer, and the next try is made from that.
            self.tally.conflicts += 1
            keeper.conflicted(wanted, str(error), self._now_ns())
            return False
        except KubeError as error:
            self.tally.failures += 1
            self._after(error, keeper)
            return False
        self._backoff.reset()
        self._denials.reset()
        self._rest_problem = ""
        if verb == "create":
            self.tally.created += 1
        else:
            self.tally.updated += 1
        if not keeper.wrote(wanted, answer, self._now_ns()):
            log.warning("NodeSLO %s: the server keeps another spec than was written; its CRD is another", meta.name)
        return True

    def _after(self, error: KubeError, keeper: Keeper) -> None:
        match error:
            case KubeDenied():
                wait_s = self._denials.next_s()
            case KubeBusy():
                wait_s = max(error.retry_after_s or 0.0, self._backoff.next_s())
            case KubeError(retry=True):
                # It may be this object alone, and then the others must not wait behind it.
                keeper.failed(str(error), self._now_ns())
                wait_s = self._backoff.next_s()
            case _:
                keeper.failed(str(error), self._now_ns())
                return
        self._rests_until_ns = self._now_ns() + int(wait_s * NS_PER_S)
        self._rest_problem = str(error)

    def _problems(self, pending: list[Keeper]) -> tuple[str, ...]:
        every = (self._rest_problem, *(keeper.problem for keeper in pending)) if pending else ()
        found = [problem for problem in dict.fromkeys(every) if problem]
        more = len(found) - _MAX_PROBLEMS
        return (*found[:_MAX_PROBLEMS], f"and {more} more like these") if more > 0 else tuple(found)

    def _forget_all_but(self, names: set[str]) -> None:
        for name in self._keepers.keys() - names:
            self._overwritten_gone += self._keepers.pop(name).overwritten
            self._logged.pop(name, None)
