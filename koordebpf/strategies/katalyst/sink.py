"""The sink of Katalyst's eviction manager: its checks, its metrics with Katalyst's names, notices to pods.

Pods of soft evictions are notified from one thread, however long the disk takes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import stat
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from prometheus_client.core import Metric

from koordebpf.kernel.io.worker import Worker
from koordebpf.policy.memory import OutcomeArrived
from koordebpf.policy.strategy import SoftNotice
from koordebpf.report.job_pages import HealthCheck
from koordebpf.slo.katalyst_access import Validation
from koordebpf.state.outcome import Outcome, Result
from koordebpf.store.sink import Event, NoticeEnded, RoundEnded
from koordebpf.strategies.katalyst.decide import GATE, KATALYST_EVICTION, KatalystDecision
from koordebpf.strategies.katalyst.inner import INSIDE
from koordebpf.strategies.katalyst.metrics import (
    KatalystChecks,
    KatalystMetrics,
    KatalystNames,
    KatalystNow,
    record_round,
    reported_taints,
)
from koordebpf.strategies.katalyst.settings import KatalystSettings
from koordebpf.strategies.katalyst.values import KatalystFacts

NOTICE = "soft_eviction_notify"
_SEPARATOR = "@@__@@"
_MODE = 0o777  # the pod's user is not known
_FILE_MODE = 0o644
_log = logging.getLogger(__name__)
_QUEUED = 200  # Why: a notice for each pod of a node; what does not fit is sent in the next round
_CLOSE_S = 1.0  # Why: as for evictions (act/evict/api.py)
_MOST_REMEMBERED = 500  # victims and the plugins that asked for them. Why: ten full bursts a minute, for a quarter hour
_ENDS = {Result.DONE: "succeeded", Result.GONE: "succeeded", Result.REFUSED: "failed", Result.FAILED: "failed"}


# The directories in which pods find the notice of a soft eviction: one for each pod that wants it.
#
# A pod mounts its own directory and may write there what it likes, so that nothing below it is trusted: no link is
# followed, and no file is opened that could block or that is not a plain one.
#
# Source: katalyst-core pkg/agent/evictionmanager/podnotifier.


class NoticeFolders:
    """One directory a pod below `root`, which must belong to root alone.

    Raises:  OSError: each of the calls.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def keep(self, pods: Collection[tuple[str, str]]) -> None:
        """Make the directories of these pods, by namespace and name, and remove those of others."""
        wanted = {_folder(*pod) for pod in pods}
        if wanted:
            self._root.mkdir(mode=0o755, parents=True, exist_ok=True)
        there = {path.name for path in self._root.iterdir()} if self._root.exists() else set()
        for name in wanted - there:
            path = self._root / name
            path.mkdir()
            path.chmod(_MODE)
        for name in there - wanted:
            if _SEPARATOR in name and not (self._root / name).is_symlink():
                shutil.rmtree(self._root / name, ignore_errors=True)  # which follows no link

    def notify(self, namespace: str, name: str, text: str) -> None:
        """Write a text into a pod's file, in place of what is in it."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        folder = os.open(self._root / _folder(namespace, name), flags)
        try:
            _write(folder, text)
        finally:
            os.close(folder)


def _folder(namespace: str, name: str) -> str:
    if "/" in name or "/" in namespace:
        raise ValueError(f"{namespace}/{name} is no name of a pod")
    return f"{name}{_SEPARATOR}{namespace}"


# The file is not truncated before it is known to be a plain one with this name alone.
def _write(folder: int, text: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    file = os.open(NOTICE, flags, _FILE_MODE, dir_fd=folder)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise OSError(f"{NOTICE} is no plain file")
        os.ftruncate(file, 0)
        os.write(file, text.encode())
        with contextlib.suppress(OSError):
            os.fchmod(file, _FILE_MODE)
    finally:
        os.close(file)


class PodNotifier:
    """Keeps the directories of pods that want a notice, and writes it. `sent` and `failed` count notices."""

    def __init__(self, root: Path) -> None:
        self._folders = NoticeFolders(root)
        self._worker: Worker[Callable[[], None]] = Worker("pod-notices", self._do, most=_QUEUED)
        self._kept: frozenset[tuple[str, str]] | None = None
        self._ended: deque[tuple[SoftNotice, str | None]] = deque(maxlen=_QUEUED)
        self._is_said = False
        self.sent = 0
        self.failed = 0

    def keep(self, pods: Collection[tuple[str, str]]) -> None:
        """Say which pods want notices, by namespace and name. Does not wait."""
        wanted = frozenset(pods)
        if wanted != self._kept and self._worker.submit(lambda: self._folders.keep(wanted)):
            self._kept = wanted

    def notify(self, notice: SoftNotice) -> None:
        """Notify one pod. Does not wait."""
        if not self._worker.submit(lambda: self._notify(notice)):
            self._ended.append((notice, "the disk has not taken the notices before it"))
            self.failed += 1

    def drain_ended(self) -> list[tuple[SoftNotice, str | None]]:
        """Return the notices that ended since the last call, and why one failed; None: it was written."""
        ended = []
        while self._ended:
            ended.append(self._ended.popleft())
        return ended

    def close(self) -> None:
        """Stop the thread; one that hangs is left."""
        if not self._worker.close(_CLOSE_S):
            _log.warning("the disk has not answered: the last notices of soft evictions are left out")

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (OSError, ValueError) as error:
            if not self._is_said:
                _log.warning("no notice of a soft eviction: %s", error)
            self._is_said = True
        else:
            self._is_said = False

    def _notify(self, notice: SoftNotice) -> None:
        try:
            self._folders.notify(notice.namespace, notice.name, datetime.now(UTC).isoformat())
        except Exception as error:
            self._ended.append((notice, str(error)))
            self.failed += 1
            raise
        self._ended.append((notice, None))
        self.sent += 1
        _log.info(
            "%s/%s is notified: %s asks it to leave: %s", notice.namespace, notice.name, notice.plugin, notice.reason
        )


class KatalystSink:
    """Takes each round and what became of it.

    Args:
        settings: of the manager.
        dry_run: nothing is evicted.
        clock_ns: CLOCK_MONOTONIC.
    """

    name = "katalyst"
    takes = (RoundEnded, OutcomeArrived, NoticeEnded)

    def __init__(
        self, settings: KatalystSettings, *, dry_run: bool, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._settings = settings
        self._is_dry_run = dry_run
        self._checks = KatalystChecks(settings.sync_ns)
        self._names = KatalystNames(settings.metrics.pod_labels) if settings.metrics.katalyst_names else None
        self._metrics = KatalystMetrics(self._checks, self._names, clock_ns)
        self._asked_by: dict[str, str] = {}  # plugin by UID of a victim
        self._acted_ns = 0
        self._called_ns: int | None = None  # when the round of plugins outside began

    def publish(self, event: Event) -> None:
        """Bring checks and metrics up to date."""
        match event:
            case RoundEnded(_, _, decision):
                made = decision.strategies.get(KATALYST_EVICTION.name)
                if isinstance(made, KatalystDecision):
                    self._record(event, made)
            case OutcomeArrived(outcome, now_ns):
                self._ended(outcome, now_ns)
            case NoticeEnded():
                self._notified(event)

    def acted(self, facts: KatalystFacts, now_ns: int) -> None:
        """Take what became of a decision beside evictions, before its round ends."""
        self._acted_ns = now_ns
        self._checks.acted(facts, now_ns)
        self._record_facts(facts)

    def checks(self) -> Sequence[HealthCheck]:
        """Return the manager's parts, plugins and sockets; from any thread."""
        return self._checks.now.every

    def families(self) -> Iterable[Metric]:
        """Return the metrics; from any thread."""
        return self._metrics.families()

    def _record(self, event: RoundEnded, made: KatalystDecision) -> None:
        view, metrics = event.view, self._metrics
        measured = KATALYST_EVICTION.measured_of(view)
        registered = measured.remote_plugins if measured else ()
        self._checks.round_ended(made.answers, registered, view.now_ns)
        metrics.now = KatalystNow(
            {"force": len(made.state.queue.forced), "soft": len(made.state.queue.soft)},
            tuple((each.condition.name, each.condition.kind) for each in made.reported),
            metrics.now.notices,
            metrics.now.validations,
        )
        if self._names is not None:
            self._names.gauges = {**self._names.gauges, "cnr_taint": reported_taints(made)}
        if made.call is not None and made.call.asks is None:
            self._called_ns = view.now_ns
        if made.requests is not None:
            self._count(event, made)
        if event.decision.carried is not None:
            self._count_released(event, made)

    def _count(self, event: RoundEnded, made: KatalystDecision) -> None:
        metrics, now_ns = self._metrics, event.view.now_ns
        if any(each.plugin in INSIDE for each in made.answers):
            metrics.rounds.add("inside")
            metrics.seconds["inside"].observe_ns(max(self._acted_ns - now_ns, 0))
        if any(each.plugin not in INSIDE for each in made.answers):
            metrics.rounds.add("outside")
            if self._called_ns is not None:
                metrics.seconds["outside"].observe_ns(now_ns - self._called_ns)
                self._called_ns = None
        for answer in made.answers:
            metrics.calls.add(answer.plugin, "failed" if answer.problem else "answered")
            if answer.threshold is not None:
                metrics.met.add(answer.plugin, answer.threshold.met)
        if (requests := made.requests) is not None:
            for mode, asked in (
                ("force", requests.forced.values()),
                ("soft", requests.soft.values()),
                ("dry_run", requests.dry_run),
            ):
                for wanted in asked:
                    metrics.requested.add(wanted.plugin, mode)
            for refused in requests.refused:
                metrics.refused.add(refused.plugin, refused.code)
        if self._names is not None:
            record_round(self._names, made, event.view, self._settings)

    def _count_released(self, event: RoundEnded, made: KatalystDecision) -> None:
        carried = event.decision.carried
        if carried is None or self._is_dry_run:
            return
        mine = {
            victim.candidate.uid
            for feature in carried.plan.features
            if feature.verdict.feature == GATE
            for victim in feature.victims
        }
        wanted = {each.uid: ("soft", each.plugin) for each in made.state.queue.soft}
        wanted |= {each.uid: ("force", each.plugin) for each in made.state.queue.forced}
        for victim in carried.screening.allowed:
            uid = victim.candidate.uid
            if uid in mine and uid in wanted:
                mode, plugin = wanted[uid]
                self._metrics.released.add(plugin, mode)
                self._asked_by = {**dict(list(self._asked_by.items())[-_MOST_REMEMBERED:]), uid: plugin}

    def _record_facts(self, facts: KatalystFacts) -> None:
        judged: dict[tuple[str, str], int] = {}
        for each, count in facts.validations.items():
            key = ("rejected" if each.is_refused else "accepted", each.reason)
            judged[key] = judged.get(key, 0) + count
        now = self._metrics.now
        self._metrics.now = KatalystNow(now.queued, now.conditions, now.notices, judged)
        if (names := self._names) is None:
            return
        names.validations = {_validation(each): count for each, count in list(facts.validations.items())[:100]}

    def _notified(self, event: NoticeEnded) -> None:
        notice, now, is_sent = event.notice, self._metrics.now, event.problem is None
        sent, failed = now.notices
        notices = (sent + is_sent, failed + (not is_sent))
        self._metrics.now = KatalystNow(now.queued, now.conditions, notices, now.validations)
        self._checks.notified(event.problem)
        state = "succeeded" if is_sent else "failed"
        self._detail("notify_pod", state, notice, notice.plugin, event.now_ns)

    def _ended(self, outcome: Outcome, now_ns: int) -> None:
        plugin, state = self._asked_by.get(outcome.uid), _ENDS.get(outcome.result)
        if plugin is not None and state is not None:
            self._detail("kill_pod", state, outcome, plugin, now_ns)

    def _detail(self, name: str, state: str, pod: Outcome | SoftNotice, plugin: str, now_ns: int) -> None:
        if self._names is not None:
            of = (("state", state), ("pod_ns", pod.namespace), ("pod_name", pod.name), ("plugin_name", plugin))
            self._names.detail(name, of, now_ns)


def _validation(each: Validation) -> tuple[tuple[str, str], ...]:
    strict, valid = str(each.is_strict).lower(), str(each.is_valid).lower()
    return ("name", each.name), ("strict", strict), ("valid", valid), ("reason", each.reason), ("user", each.user)
