"""What a strategy is: a folder of `strategies/` with one of these, and a line in `decision/strategies.py`. Pure.

Its gate, settings, state, place in the plan, metrics, audit and files come from there.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import msgspec

from koordebpf.kernel.host.strategy_files import KernelFile
from koordebpf.policy.detect.verdict import Verdict
from koordebpf.policy.evict.resources import Relief
from koordebpf.policy.evict.round import Round
from koordebpf.policy.plan import Candidate, Excluded, PodAction
from koordebpf.policy.reconcile import CgroupWrite, SysctlWrite
from koordebpf.state.view import KillerName, NodeView

GATE_OFF = "gate_off"
KEPT = "suppression.json"  # in an agent's folder: what it leaves to the next one, which removes it when it continues
Ranking = tuple[tuple[Candidate, ...], tuple[Excluded, ...]]
M = TypeVar("M")  # what is measured for a strategy
S = TypeVar("S", bound=msgspec.Struct)  # what a strategy remembers from one round to the next
C = TypeVar("C", bound=msgspec.Struct)  # what an operator may set


class SoftNotice(NamedTuple):
    """A pod that is asked to leave by itself, by which plugin and why."""

    namespace: str
    name: str
    plugin: str
    reason: str
    uid: str


class RequestNews(msgspec.Struct, frozen=True):
    """One request that is not carried out. `namespace` and `name` are "" where no such pod is known."""

    plugin: str
    uid: str
    namespace: str
    name: str
    outcome: Literal["refused", "dry_run"]
    code: str
    reason: str


class Empty(msgspec.Struct, frozen=True):
    """Of a strategy that remembers nothing, or has nothing to set."""


class NamedExecutor(NamedTuple):
    """An executor that a setting names: where that is in the configuration, its value, and the executor."""

    place: str
    value: str
    executor: KillerName


class Demand(msgspec.Struct, frozen=True):
    """Something that pods must release. The arbiter (`policy.decide`) chooses the victims of all demands together.

    `verdict`        what is short, and by how much.
    `relief`         of the resource that is short: what an eviction releases of it.
    `rank`           the pods that may be evicted for it, in order, and those that may not and why.
    `whom`           in sentences: "no <whom> can be evicted".
    `mode`           force: PodDisruptionBudgets and grace periods as the operator set. soft: after all that is forced,
                     and both are always honoured.
    `is_one_by_one`  how much an eviction releases is not known: one pod is evicted, and its effect awaited.
    `reasons`        why a pod is evicted, by UID, for its Event; of one that is left out Koordinator's text.
    `grace_s`        how long a pod is given to end, by UID; of one that is left out as the operator set.
    `killers`        how a pod is evicted, by UID; one that is left out as executor.type says.
    """

    verdict: Verdict
    relief: Relief
    rank: Callable[[Round], Ranking]
    whom: str
    mode: Literal["force", "soft"] = "force"
    is_one_by_one: bool = False
    reasons: Mapping[str, str] = {}
    grace_s: Mapping[str, int] = {}
    killers: Mapping[str, KillerName] = {}


class Decision(msgspec.Struct, Generic[S], frozen=True, kw_only=True):
    """What a strategy wants in one round; `reason` is one sentence.

    `state`       to be remembered.
    `skipped`     a short stable word where the round could not be judged: what was written before stays.
    `demands`     what pods are to release.
    `writes`      all cgroup files that the strategy wants now; one that it wants no more is restored. Where several
                  strategies want a file, `policy.reconcile` says who wins.
    `sysctls`     the same of files of /proc/sys.
    `conditions`  sentences that say why the node is to be marked (`nodeMark`), so that no pod is sent to it.
    `wake_at_ns`  the next round is due then at the latest. None: no hurry.
    """

    state: S
    reason: str
    skipped: str | None = None
    demands: tuple[Demand, ...] = ()
    writes: tuple[CgroupWrite, ...] = ()
    sysctls: tuple[SysctlWrite, ...] = ()
    conditions: tuple[str, ...] = ()
    wake_at_ns: int | None = None

    @property
    def way(self) -> str | None:
        """By which of several ways it acts, in a word: where that changes, its files are news. None: there is one."""
        return None

    def pod_actions(self, view: NodeView) -> tuple[PodAction, ...]:
        """Return what is done to pods beside cgroup files, in the order of the decision; `view` names them."""
        return ()


class Explanation(msgspec.Struct, frozen=True):
    """What a decision rests on, for people: fields of a strategy's own, and how pages show them."""

    def blocks(self) -> list[list[str]]:
        """Return its part of a plan's page. Lines may be as long as they are: the page wraps them."""
        return []

    def cells(self) -> Mapping[str, str]:
        """Return what is compared of two decisions, by name; both have the same names, in one order."""
        return {}

    def done(self) -> str | None:
        """Return what it does, for the first sentence of a plan; None: nothing."""
        return None


class Strategy(abc.ABC, Generic[M, S, C]):
    """One strategy.

    `name`              in camelCase, for the configuration file (strategies.<name>), the journal and frames.
    `gate`              its feature gate; koordlet's where koordlet has the strategy.
    `summary`           what it does, in a few words: its line in `koordebpf config strategies`.
    `is_on`             the gate's default.
    `settings`          a type whose docstring says of each field what it is and why its default; it is a section of
                        the configuration file.
    `section`           the name of that section; None: strategies.<name>.
    `shared_section`    of settings that it shares with others, or has outside `strategies`; None: it does not.
    `measured`          the type of what is measured for it alone; None: it decides from what every view has.
    `part`              the key of that in `Measured.parts`: its name, or one that several strategies share.
    `state`             a type with a default for each field.
    `is_taken_over`     what it wrote stays where an agent stands by: that one continues from there.
    `decides_when_off`  it is asked while its gate is off, too, and reads the gate itself.
    `undoes_itself`     its decision has what files hold without it: those that it names no more are left as they are.
    `reads_eviction`    it is given section `eviction`, too: it chooses pods that those settings may protect.
    `may_choose_any`    it may ask for any pod, whatever its labels and priority say.
    `reads_cnr`         it decides from the node's CustomNodeResource, which no other feature reads.
    `keeps_time`        what it remembers says when it is due next: a frame of one moment is without that.
    `annotations`       of pods, that its decision reads by their own names; `labels` the same. Recordings keep them.
    `needs`             files of the kernel and what it does with each: for `koordebpf doctor`, and a table of kernels.
    `explanation`       the type of what `explained` returns; None: the reason and the files say it all.
    `is_logged_by_round` its files are hundreds and change with the load: they are logged once a round, and rarely.
    `record`            a file in the agent's folder: what it has changed other than cgroup files. Where an agent that
                        was killed has left it, its runner is opened to put that back, with the gate off, too.
    `needs_cpu`         it is asked in rounds that measured the CPUs, once pods and Node are known. A round that it asks
                        for measures them; where they cannot be measured then, it is asked as soon as they are.
    """

    name: str
    gate: str
    summary: str
    settings: type[C]
    state: type[S]
    measured: type[M] | None = None
    is_on: bool = False
    decides_when_off: bool = False
    is_taken_over: bool = False
    needs_cpu: bool = False
    undoes_itself: bool = False
    reads_eviction: bool = False
    may_choose_any: bool = False
    reads_cnr: bool = False
    keeps_time: bool = False
    section: str | None = None
    shared_section: str | None = None
    annotations: frozenset[str] = frozenset()
    labels: frozenset[str] = frozenset()
    needs: tuple[KernelFile, ...] = ()
    record: str | None = None
    explanation: type[Explanation] | None = None
    is_logged_by_round: bool = False

    def is_asked(self, feature_gates: Mapping[str, bool]) -> bool:
        """Tell whether it decides: its gate is on, or it reads the gate itself."""
        return self.decides_when_off or feature_gates.get(self.gate, self.is_on)

    @property
    def part(self) -> str:
        """As the class says."""
        return self.name

    def annotations_named(self, settings: C) -> Iterable[str]:
        """Return the keys of pods' annotations that these settings let it read, in addition to `annotations`."""
        return ()

    def executors_named(self, settings: C) -> Iterable[NamedExecutor]:
        """Return the executors that these settings name for pods that it asks for."""
        return ()

    def explained(self, made: Decision[S], view: NodeView) -> Explanation | None:
        """Return what a decision on this view rests on, of the type `explanation`."""
        return None

    def stays_at_exit(self, settings: C) -> bool:
        """Tell whether what it wrote is left to a successor that no agent has announced, where a process may wait."""
        return False

    @property
    def run_module(self) -> str:
        """The module next to its own whose `open_runner` returns its runner; there is none where it needs none."""
        return f"{type(self).__module__.rpartition('.')[0]}.run"

    @property
    def doctor_module(self) -> str:
        """The same whose `sources` returns what it lacks on this host; there is none where `needs` says all of it."""
        return f"{type(self).__module__.rpartition('.')[0]}.doctor"

    @abc.abstractmethod
    def decide(self, view: NodeView, measured: M | None, state: S, settings: C) -> Decision[S]:
        """Return what is wanted now. The same arguments give the same decision.

        Args:
            view: the node.
            measured: for this strategy; None: it was not due, or could not be measured.
            state: what it returned of the last round in which it was asked.
            settings: its section of the configuration.
        """

    def measured_of(self, view: NodeView) -> M | None:
        """Return what was measured for it; None: nothing was."""
        return view.measured.parts.get(self.part)


def off(strategy: Strategy[Any, Any, Any], state: msgspec.Struct) -> Decision[Any]:
    """Return the decision of a strategy whose gate is off: it wants nothing."""
    return Decision(state=state, reason=f"feature gate {strategy.gate} is off", skipped=GATE_OFF)
