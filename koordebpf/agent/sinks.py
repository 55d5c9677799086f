"""Opens everything that records or reports what happens in the agent, and hands it on."""

from __future__ import annotations

import importlib.util
import logging
import secrets
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from koordebpf.act.writer.change import FileChange
from koordebpf.clock import Clock, SystemClock
from koordebpf.collect.scope import NodeScope
from koordebpf.configuration.settings import AgentConfig, RecorderSettings, ShadowSettings
from koordebpf.errors import SupportError
from koordebpf.report.events import EventPoster, EventSink
from koordebpf.report.foresight import ForesightSink
from koordebpf.report.http.routes import Health
from koordebpf.report.job_pages import HealthCheck, JobPages
from koordebpf.report.log_sink import LogSink
from koordebpf.report.prom.metrics import AgentMetrics
from koordebpf.report.prom.sink import MetricsSink
from koordebpf.report.recent import Recent
from koordebpf.store.audit import AuditLog
from koordebpf.store.audit_trail import AuditTrail
from koordebpf.store.frames import FrameLog
from koordebpf.store.open_plans import OpenPlans
from koordebpf.store.sink import EVENTS, DecisionsInterrupted, Event, FileChanged, ReportFailed, Sink
from koordebpf.store.wal import InFlight
from koordebpf.units import GIB, MIB, NS_PER_S

if TYPE_CHECKING:
    from koordebpf.jobs.shadow import ShadowSink
    from koordebpf.report.eviction_hooks import EvictionHookSink
    from koordebpf.store.recorder.recorder import Recorder, Store

CHECK = "eviction-hooks"
NO_SHADOW = ShadowSettings()
log = logging.getLogger("koordebpf")
IN_MEMORY_BYTES = 4 * MIB
_FILE_BYTES = GIB
_READER_S = 5.0  # Why: a person who starts the reader after it; the agent does not run meanwhile
NOT_RECORDED = RecorderSettings(folder=None)


def open_eviction_hooks(config: AgentConfig, plans: OpenPlans, beside: JobPages) -> EvictionHookSink | None:
    """Return the sink that has hooks called, and show in /readyz which of them fail; None: none is set.

    A hook that cannot be called is logged and does not keep the agent from its start.
    """
    if not config.eviction_hooks.webhooks:
        return None
    from koordebpf.act.eviction_hooks import open_hooks
    from koordebpf.report.eviction_hooks import EvictionHookSink

    hooks = open_hooks(config.eviction_hooks)
    beside.checks[CHECK] = lambda: HealthCheck(CHECK, hooks.problem(), time.monotonic_ns(), NS_PER_S)
    return EvictionHookSink(hooks, plans)


def open_foresight(config: AgentConfig, plans: OpenPlans, events: EventPoster | None) -> ForesightSink | None:
    """Return the sink that warns of evictions ahead; None: it never would."""
    if not config.eviction_warning.ahead_ns:
        return None
    post = events.post if events else None
    return ForesightSink(config.eviction_warning, plans.node, post, dry_run=plans.dry_run)


def open_shadow(config: AgentConfig, scope: NodeScope, node: str) -> ShadowSink | None:
    """Return the sink that judges the configurations; None: there are none.

    Raises:  ConfigError: a setting of one is none, or has another type.
    """
    settings = config.shadow
    if not settings.configurations:
        return None
    from koordebpf.configuration.variant import shadow_variants
    from koordebpf.decision.what_if.shadow import Shadows
    from koordebpf.decision.what_if.week import ShadowWeek
    from koordebpf.jobs.shadow import ShadowSink
    from koordebpf.store.shadow import FOLDER, WeekKeeper

    keeper = None
    if settings.folder is not None:
        now = ShadowWeek(
            node=node,
            is_dry_run=not config.enforce,
            kubelet_hard_bytes=settings.kubelet_hard_bytes,
            settings={each.name: each.settings for each in settings.configurations},
        )
        # By name alone, as recordings are: the id of a cgroup is another one after a restart.
        name = "machine" if scope.kind == "machine" else scope.path.name
        keeper = WeekKeeper(settings.folder / FOLDER / f"{name}.json", now)
    shadows = Shadows(shadow_variants(settings), settings.kubelet_hard_bytes)
    return ShadowSink(shadows, keeper, scope.node_cgroup_id)


def open_recorder(config: AgentConfig, scope: NodeScope, node: str) -> Recorder | None:
    """Return the recorder; None: nothing is recorded. The ring's folder is opened later, by the thread that writes.

    Raises:  ConfigError: `recorder.file` cannot be written. SupportError: it is wanted, and zstandard
        is not installed; without a file the agent runs without a recorder then, and says so.
    """
    settings = config.recorder
    if settings.file is None and settings.folder is None:
        return None
    if importlib.util.find_spec("zstandard") is None:
        missing = SupportError("recorder", "the Python package zstandard is not installed", "Install zstandard.")
        if settings.file is not None:
            raise missing
        log.warning("rounds are not recorded: %s", missing)
        return None

    from koordebpf.kernel.cgroup.kill import raise_thread_priority
    from koordebpf.store.recorder.recorder import Recorder

    store = _open_store(config, scope, node)
    return Recorder(store, begin=raise_thread_priority) if config.lock_memory else Recorder(store)


def _open_store(config: AgentConfig, scope: NodeScope, node: str) -> Store:
    from koordebpf.store.recorder.ring import Run
    from koordebpf.store.recorder.stores import FileStore, Place, RingStore

    settings, run = config.recorder, Run(secrets.token_hex(4), node)
    if settings.file is not None:
        return FileStore(settings.file, run, _FILE_BYTES, option="recorder.file", reader_s=_READER_S)
    assert settings.folder is not None
    # By name alone: the id of a cgroup is another one after a restart, and nothing would remove what was before it.
    own = Path("recorder") / ("machine" if scope.kind == "machine" else scope.path.name)
    places = [
        Place(settings.folder / own, settings.max_size_bytes),
        Place(config.run_dir / own, min(settings.max_size_bytes, IN_MEMORY_BYTES)),
    ]
    return RingStore(places, run)


class Sinks:
    """Publishes each event to the sinks that take its type, in their order.

    An error of one concerns no other, and not the tick: it is counted in `errors`, and the first of each sink is
    logged with its traceback.
    """

    name = "all"
    takes = EVENTS

    def __init__(self, sinks: Sequence[Sink], clock: Clock) -> None:
        # Once, not with each event: to try every match of every sink takes twice the time.
        self._takers = {kind: tuple(each for each in sinks if kind in each.takes) for kind in EVENTS}
        self._clock = clock
        self.errors: dict[str, int] = {}  # by sink

    def add(self, sink: Sink) -> None:
        """Let one more take events, after the others."""
        for kind in sink.takes:
            self._takers[kind] += (sink,)

    def publish(self, event: Event) -> None:
        """Let those sinks take the event; a report that could not be made counts as an error of a sink of its name."""
        if isinstance(event, ReportFailed):
            self._count_error(event.report, f"{event.report} could not be counted", event.error)
        for sink in self._takers[type(event)]:
            try:
                sink.publish(event)
            except Exception as error:
                self._count_error(sink.name, f"sink {sink.name} failed on {type(event).__name__}", error)

    def publish_change(self, change: FileChange) -> None:
        """Publish a change of a file at the moment it is made."""
        self.publish(FileChanged(change, self._clock.wall_s()))

    def _count_error(self, name: str, what: str, error: Exception) -> None:
        self.errors[name] = count = self.errors.get(name, 0) + 1
        if count == 1:
            log.error("%s; more of its errors are only counted", what, exc_info=error)


def open_sinks(
    plans: OpenPlans,
    metrics: AgentMetrics,
    health: Health,
    recent: Recent,
    *,
    audit: AuditLog | None = None,
    in_flight: InFlight | None = None,
    events: EventPoster | None = None,
    hooks: EvictionHookSink | None = None,
    foresight: ForesightSink | None = None,
    frames: FrameLog | None = None,
    recorder: Recorder | None = None,
    shadow: ShadowSink | None = None,
    clock: Clock = SystemClock(),  # noqa: B008 - without state
) -> Sinks:
    """Return all sinks; they report what an agent before this one was ended in the middle of.

    The order matters: the plans are what others look victims up in, and the write-ahead log comes before reports.
    """
    trail = AuditTrail(audit, in_flight, plans)
    sinks = Sinks(
        (
            plans,
            trail,
            MetricsSink(metrics, plans),
            LogSink(plans),
            *((hooks,) if hooks else ()),
            *((foresight,) if foresight else ()),
            *((EventSink(events, plans, clock),) if events else ()),
            health,
            recent,
            *((frames,) if frames else ()),
            *((recorder,) if recorder else ()),
            *((shadow,) if shadow else ()),
        ),
        clock,
    )
    metrics.sinks.audit, metrics.sinks.events, metrics.sinks.errors = trail, events, sinks.errors
    metrics.sinks.hooks, metrics.sinks.foresight = hooks, foresight
    metrics.sinks.recorder = recorder.counts if recorder else None
    if shadow:
        from koordebpf.report.prom.shadow import ShadowMetrics

        metrics.sinks.shadow = ShadowMetrics(shadow)
    sinks.publish(DecisionsInterrupted(trail.left))
    return sinks
