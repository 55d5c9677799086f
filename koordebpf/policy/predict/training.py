"""One step of the models: what was used in the last interval becomes one more sample of each.

Source:  koordinator pkg/koordlet/prediction/predict_server.go.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from koordebpf.state.prediction.models import (
    BAND_UIDS,
    NODE_UID,
    SYSTEM_UID,
    Model,
    Models,
    Usage,
    empty_model,
)
from koordebpf.state.prediction.values import HalfLives
from koordebpf.state.series.kinds import NODE_CPU, NODE_MEMORY, POD_CPU, POD_MEMORY, SeriesKey
from koordebpf.state.series.node import NodeSeries

_NOTHING = Usage(0.0, 0.0)
_MOST_CORES, _MOST_BYTES = 1e6, 1e18  # Why: no machine has them; what says so was misread


def pod_usage(series: NodeSeries, uid: str, now_ns: int, window_ns: int) -> Usage | None:
    """Return the p90 of what a pod used in the window; None: CPU or memory was not measured in it."""
    return _usage(series, (POD_CPU, uid), (POD_MEMORY, uid), now_ns, window_ns)


def node_usage(series: NodeSeries, now_ns: int, window_ns: int) -> Usage | None:
    """Return the same of the node."""
    return _usage(series, (NODE_CPU,), (NODE_MEMORY,), now_ns, window_ns)


def node_samples(bands: Mapping[str, str], pods: Mapping[str, Usage], node: Usage | None) -> dict[str, Usage]:
    """Return the samples of the node, of each band of priority and of the system, by the UID of their models.

    A band of which there is no pod has used nothing. One with pods of which none was measured has no sample, and
    without the node's usage the system has none: absent is not zero.

    Args:
        bands: of every pod on the node, by UID.
        pods: what was measured of them.
        node: the node as a whole; None: it was not measured.
    """
    samples: dict[str, Usage] = {} if node is None else {NODE_UID: node}
    sums: dict[str, Usage] = {}
    for uid, usage in pods.items():
        band = bands[uid]
        sums[band] = sums.get(band, _NOTHING) + usage
    present = set(bands.values())
    for band, uid in BAND_UIDS.items():
        if band in sums:
            samples[uid] = sums[band]
        elif band not in present:
            samples[uid] = _NOTHING
    if node is not None:
        of_pods = sum(sums.values(), _NOTHING)
        samples[SYSTEM_UID] = Usage(
            max(node.cpu_cores - of_pods.cpu_cores, 0.0), max(node.memory_bytes - of_pods.memory_bytes, 0.0)
        )
    return samples


def trained(models: Models, samples: Mapping[str, Usage], now_ns: int, half_lives: HalfLives) -> Models:
    """Return the models with one more sample of each UID that is given; one that is new starts with it.

    Args:
        models: those of before, which stay as they are.
        samples: by UID; one that no machine can have used is left out.
        now_ns: nanoseconds since 1970.
        half_lives: of models that are new.
    Cost:    5 µs a sample.
    """
    after = dict(models)
    for uid, usage in samples.items():
        if not (_is_possible(usage.cpu_cores, _MOST_CORES) and _is_possible(usage.memory_bytes, _MOST_BYTES)):
            continue
        before = models.get(uid)
        model = empty_model(half_lives) if before is None else before
        after[uid] = Model(
            model.cpu.plus(usage.cpu_cores, now_ns),
            model.memory.plus(usage.memory_bytes, now_ns),
            now_ns,
            model.checkpointed_ns,
        )
    return after


def expired(models: Models, now_ns: int, after_ns: int) -> tuple[str, ...]:
    """Return the UIDs of models that had no sample for longer than that."""
    return tuple(uid for uid, model in models.items() if model.updated_ns + after_ns < now_ns)


def without(models: Models, uids: Iterable[str]) -> Models:
    """Return the models of all other UIDs."""
    removed = frozenset(uids)
    return {uid: model for uid, model in models.items() if uid not in removed}


def due_for_checkpoint(models: Models, now_ns: int, every_ns: int, most: int) -> tuple[str, ...]:
    """Return the UIDs of models that are to be kept again, the one that was kept longest ago first."""
    due = [(model.checkpointed_ns, uid) for uid, model in models.items() if model.checkpointed_ns + every_ns <= now_ns]
    return tuple(uid for _, uid in sorted(due)[:most])


def checkpointed(models: Models, uids: Iterable[str], now_ns: int) -> Models:
    """Return the models with those of these UIDs kept at this moment."""
    after = dict(models)
    for uid in uids:
        model = models[uid]
        after[uid] = Model(model.cpu, model.memory, model.updated_ns, now_ns)
    return after


def _usage(series: NodeSeries, cpu: SeriesKey, memory: SeriesKey, now_ns: int, window_ns: int) -> Usage | None:
    cores = series.query(cpu, now_ns, window_ns, "p90")
    if cores is None:
        return None
    size = series.query(memory, now_ns, window_ns, "p90")
    return None if size is None else Usage(cores, size)


def _is_possible(value: float, most: float) -> bool:
    return math.isfinite(value) and value <= most
