"""Prediction of peaks, beside the ticks: each minute a sample of every model, in steps that leave the loop its time.

Its feature gate is PeakPrediction. What is predicted is in `Measuring.prediction`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from koordebpf.clock import Clock, Due, SystemClock
from koordebpf.collect.cluster_view import ClusterView
from koordebpf.collect.scope import folder_of
from koordebpf.jobs.prediction.checkpoint import ModelCheckpoint, encode_checkpoint
from koordebpf.jobs.prediction.keeper import CheckpointKeeper
from koordebpf.jobs.prediction.models import OWN_UIDS, Models, Usage, restored_model
from koordebpf.jobs.prediction.predict import (
    PredictedPod,
    checkpointed,
    due_for_checkpoint,
    expired,
    node_samples,
    node_usage,
    peak_of,
    pod_usage,
    predict,
    predicted_pod,
    trained,
    without,
)
from koordebpf.jobs.prediction.values import PredictionSettings
from koordebpf.runner.context import NodeContext
from koordebpf.state.pods.facts import PodFacts
from koordebpf.state.prediction import Amounts, LatestPrediction
from koordebpf.state.series.store import NodeSeries
from koordebpf.units import NS_PER_S

log = logging.getLogger("koordebpf")

_STEP_NS: Final = 500 * 1_000  # Why: a job has a millisecond, and the last pod of a step may take as long again
_HOUSEKEEPING_NS: Final = 60 * NS_PER_S  # koordlet's pace of both
_RESTORE_NS: Final = 30 * NS_PER_S  # Why: a disk that takes longer hangs, and without it a day of learning begins
_MOST_NAMED: Final = 5
_CLOSE_S: Final = 1.0  # Why: 117 files are 0.1 s on a disk at rest


class PeakPrediction:
    """The models of this node. Training begins once pods and Node are known and what was kept is read."""

    name = "prediction of peaks"
    period_ns = NS_PER_S

    def __init__(
        self,
        known: ClusterView,
        latest: LatestPrediction,
        settings: PredictionSettings,
        keeper: CheckpointKeeper,
        clock: Clock,
    ) -> None:
        self.models: Models = {}
        self.problem: str | None = None  # why nothing is reclaimable
        self._known = known
        self._latest = latest
        self._settings = settings
        self._clock = clock
        self._start_ns = int(clock.wall_s() * NS_PER_S) - clock.now_ns() - clock.suspended_ns()
        self._restoring: _Restoring | None = _Restoring(keeper, settings, clock)
        self._keeping = _Keeping(keeper, settings)
        self._training = Due(settings.train_every_ns)
        self._round: _Round | None = None
        self._pods: dict[str, tuple[PodFacts, PredictedPod]] = {}  # by UID

    @property
    def has_synced(self) -> bool:
        """The first training is done."""
        return self._latest.at_ns > 0

    def collect(self, now_ns: int, into: NodeSeries) -> None:
        """Do the next step, if one is due."""
        known = self._known
        if not known.is_whole:
            return
        if self._restoring is not None:
            self._restore(self._restoring, now_ns)
        elif self._round is not None:
            self._continue(self._round, into)
        elif self._training.is_nearly_due(now_ns):
            self._training.done(now_ns)
            self._round = _Round(known.facts, self.models, now_ns)
            self._continue(self._round, into)
        elif self.has_synced:
            self.models = self._keeping.step(self.models, now_ns, self._wall_ns())

    def close(self) -> None:
        """Keep every model, as far as the disk takes them in a second."""
        self._keeping.close(self.models if self.has_synced else {}, self._wall_ns())

    # Steady: a clock that is set while the agent runs must not make samples older or newer than they are.
    def _wall_ns(self) -> int:
        return self._start_ns + self._clock.now_ns() + self._clock.suspended_ns()

    def _restore(self, restoring: _Restoring, now_ns: int) -> None:
        self.models = restoring.step(self.models, self._known.uids, now_ns, self._wall_ns())
        if restoring.is_done:
            self._restoring = None
            log.info("prediction begins with %d models that were kept", len(self.models))

    def _continue(self, training: _Round, into: NodeSeries) -> None:
        until_ns = self._clock.now_ns() + _STEP_NS
        settings, wall_ns = self._settings, self._wall_ns()
        while training.waiting:
            facts = training.waiting.pop()
            pod = self._predicted(facts)
            training.bands[pod.uid] = pod.band
            usage = pod_usage(into, pod.uid, training.now_ns, settings.train_every_ns)
            if usage is not None:
                training.usages[pod.uid] = usage
                training.pods.append(pod)
                training.models = trained(training.models, {pod.uid: usage}, wall_ns, settings.half_lives)
                if (model := training.models.get(pod.uid)) is not None:
                    training.peaks[pod.uid] = peak_of(model, settings)
            if self._clock.now_ns() >= until_ns:
                return
        self._finish(training, into, wall_ns)

    # The node's own models, and what follows from all of them.
    def _finish(self, training: _Round, into: NodeSeries, wall_ns: int) -> None:
        settings, known = self._settings, self._known
        node = node_usage(into, training.now_ns, settings.train_every_ns)
        samples = node_samples(training.bands, training.usages, node)
        self.models = trained(training.models, samples, wall_ns, settings.half_lives)
        peaks = training.peaks | {uid: peak_of(self.models[uid], settings) for uid in OWN_UIDS & self.models.keys()}
        predicted = predict(peaks, training.pods, known.node, self._clock.wall_s(), settings)
        if predicted.problem != self.problem and predicted.problem is not None:
            log.warning("nothing is predicted to be reclaimable: %s", predicted.problem)
        self.problem = predicted.problem
        self._latest.put(predicted.prod, predicted.by, self._clock.now_ns())
        self._pods = {uid: each for uid, each in self._pods.items() if uid in training.bands}
        self._round = None

    def _predicted(self, facts: PodFacts) -> PredictedPod:
        known = self._pods.get(facts.uid)
        if known is None or known[0] is not facts:
            known = self._pods[facts.uid] = (facts, predicted_pod(facts))
        return known[1]


class _Restoring:
    """Takes in what was kept, in steps; a disk that hangs is not waited for."""

    def __init__(self, keeper: CheckpointKeeper, settings: PredictionSettings, clock: Clock) -> None:
        self.is_done = False
        self._keeper = keeper
        self._settings = settings
        self._clock = clock
        self._asked_ns: int | None = None
        self._waiting: Iterator[tuple[str, ModelCheckpoint]] | None = None

    def step(self, models: Models, uids: frozenset[str], now_ns: int, wall_ns: int) -> Models:
        """Return the models with some more of those of these pods and of the node."""
        if self._asked_ns is None:
            self._asked_ns = now_ns
            self._keeper.restore({*OWN_UIDS, *uids})
        elif self._keeper.found is not None:
            return self._load(models, wall_ns)
        elif now_ns - self._asked_ns > _RESTORE_NS:
            log.warning("the models that were kept are not read: the disk is slow; learning begins from nothing")
            self.is_done = True
        return models

    def _load(self, models: Models, wall_ns: int) -> Models:
        found, until_ns, after = self._keeper.found, self._clock.now_ns() + _STEP_NS, dict(models)
        assert found is not None
        if self._waiting is None:
            self._waiting = iter(found.checkpoints.items())
            for problem in found.problems[:_MOST_NAMED]:
                log.warning("a model of prediction is set aside: %s", problem)
        for uid, kept in self._waiting:
            after[uid] = restored_model(kept, self._settings.half_lives, wall_ns)
            if self._clock.now_ns() >= until_ns:
                return after
        self.is_done = True
        return after


class _Keeping:
    """Deletes models that have expired, and writes the others to their files, some each minute."""

    def __init__(self, keeper: CheckpointKeeper, settings: PredictionSettings) -> None:
        self._keeper = keeper
        self._settings = settings
        self._due = Due(_HOUSEKEEPING_NS)
        self._removed: set[str] = set()  # UIDs of which the files are to be removed

    def step(self, models: Models, now_ns: int, wall_ns: int) -> Models:
        """Return the models that are left, once a minute."""
        if not self._due.is_nearly_due(now_ns):
            return models
        self._due.done(now_ns)
        settings = self._settings
        if removed := expired(models, wall_ns, settings.expire_ns):
            models = without(models, removed)
            self._removed.update(removed)
        if not self._keeper.writes or self._keeper.is_busy:
            return models
        due = due_for_checkpoint(models, wall_ns, settings.checkpoint_every_ns, settings.checkpoints_per_step)
        return self._save(models, due, wall_ns)

    def close(self, models: Models, wall_ns: int) -> None:
        """Write all models, unless the disk is behind already."""
        if not self._keeper.is_busy:
            self._save(models, tuple(models), wall_ns)
        if not self._keeper.close(_CLOSE_S):
            log.warning("not every model of prediction was kept: the disk is slow")

    def _save(self, models: Models, uids: tuple[str, ...], wall_ns: int) -> Models:
        if uids or self._removed:
            files = {uid: encode_checkpoint(models[uid].checkpoint(uid, wall_ns)) for uid in uids}
            self._keeper.write(files, self._removed - models.keys())
            self._removed = set()
        return checkpointed(models, uids, wall_ns)


class _Round:
    """One training that is in progress.

    Args:
        facts: every pod on the node.
        models: before it.
        now_ns: CLOCK_MONOTONIC, the end of the interval of which the samples are.
    """

    def __init__(self, facts: Sequence[PodFacts], models: Models, now_ns: int) -> None:
        self.now_ns = now_ns
        self.waiting = list(facts)
        self.models = models
        self.bands: dict[str, str] = {}  # of each pod, by UID
        self.usages: dict[str, Usage] = {}  # of those that were measured
        self.pods: list[PredictedPod] = []  # of those that were measured
        self.peaks: dict[str, Amounts] = {}


def open_job(node: NodeContext) -> PeakPrediction:
    """Return the job, which its schedule closes."""
    settings, scope = node.config.prediction, node.measuring.watch.scope
    folder = Path(settings.folder) if settings.folder else folder_of(node.config.run_dir, scope) / "prediction"
    koordlet = Path(settings.koordlet_folder) if settings.koordlet_folder else None
    keeper = CheckpointKeeper(folder, koordlet, writes=node.acts)
    return PeakPrediction(node.measuring.known, node.measuring.prediction, settings, keeper, SystemClock())
