"""What a minute of prediction costs on a node of 110 pods, beside the same with numpy."""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from collections.abc import Callable

from koordebpf.jobs.prediction.checkpoint import decode_checkpoint, encode_checkpoint
from koordebpf.jobs.prediction.models import OWN_UIDS, Models, Usage, restored_model
from koordebpf.jobs.prediction.predict import PredictedPod, peak_of, pod_usage, predict, trained
from koordebpf.jobs.prediction.values import PredictionSettings
from koordebpf.state.prediction import Amounts
from koordebpf.state.series.store import node_series
from koordebpf.units import GIB, MIB, NS_PER_S
from tests.bench.figure import at_most, figure
from tests.bench.report import Report
from tests.bench.timing import times_ms

PODS = 110
_DAYS = 2
_NOW_NS = 1_772_702_621 * NS_PER_S
_MINUTE_NS = 60 * NS_PER_S
_SETTINGS = PredictionSettings()
_HALF_LIVES = _SETTINGS.half_lives


def prediction(report: Report) -> None:
    """Train, ask, keep and restore 117 models that have seen two days."""
    n = 50 if report.quick else 300
    chance = random.Random(17)
    uids = [*(f"uid-{number}" for number in range(PODS)), *sorted(OWN_UIDS)]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    models = _learned(uids, chance, 200 if report.quick else _DAYS * 1440)
    gc.collect()
    size_mib = (tracemalloc.get_traced_memory()[0] - before) / MIB
    tracemalloc.stop()
    samples = _samples(uids, chance)
    method = f"trained() of {len(models)} models, {2 * len(models)} histograms, one sample each"
    times = times_ms(lambda: trained(models, samples, _NOW_NS, _HALF_LIVES), n, time.thread_time_ns)
    report.add(figure("prediction: one sample of 117 models", "ms", times, method, reach_p50=2))
    times = times_ms(lambda: [model.results() for model in models.values()], n, time.thread_time_ns)
    report.add(figure("  five percentiles of each", "ms", times, "p60, p90, p95, p98 and max of both", reach_p50=5))
    report.add(at_most("  memory of all models", "MiB", size_mib, 2, "tracemalloc, after two days of samples"))
    _predicting(report, models, n)
    _keeping(report, models, n)
    _numpy(report, samples, n)


def _learned(uids: list[str], chance: random.Random, minutes: int) -> Models:
    models: Models = {}
    for minute in range(minutes):
        models = trained(models, _samples(uids, chance), _NOW_NS - (minutes - minute) * _MINUTE_NS, _HALF_LIVES)
    return models


def _samples(uids: list[str], chance: random.Random) -> dict[str, Usage]:
    return {
        uid: Usage(chance.lognormvariate(0, 1) * 0.5, chance.lognormvariate(0, 0.3) * (number % 9 + 1) * GIB / 4)
        for number, uid in enumerate(uids)
    }


def _predicting(report: Report, models: Models, n: int) -> None:
    pods = [PredictedPod(uid, "koord-prod", Amounts(2000, 4 * GIB), 0.0) for uid in models if uid not in OWN_UIDS]
    peaks = {uid: peak_of(model, _SETTINGS) for uid, model in models.items()}
    times = times_ms(lambda: predict(peaks, pods, None, 2e9, _SETTINGS), n, time.thread_time_ns)
    report.add(figure("  what is reclaimable of 110 pods", "ms", times, "predict(), peaks known", reach_p50=1))
    series = node_series()
    for second in range(60):
        series.append(("pod_cpu_usage", "u"), _NOW_NS + second * NS_PER_S, second * 0.01)
        series.append(("pod_memory_usage", "u"), _NOW_NS + second * NS_PER_S, second * 1e6)
    times = times_ms(lambda: pod_usage(series, "u", _NOW_NS + _MINUTE_NS, _MINUTE_NS), n, time.thread_time_ns)
    report.add(figure("  p90 of a pod's minute out of the series", "ms", times, "CPU and memory, 60 samples each"))


def _keeping(report: Report, models: Models, n: int) -> None:
    model = models["uid-0"]
    raw = encode_checkpoint(model.checkpoint("uid-0", _NOW_NS))
    times = times_ms(lambda: encode_checkpoint(model.checkpoint("uid-0", _NOW_NS)), n, time.thread_time_ns)
    report.add(figure("  a checkpoint", "ms", times, f"to {len(raw)} bytes of koordlet's JSON; 12 a minute"))
    kept = decode_checkpoint(raw, "uid-0", "file")
    times = times_ms(lambda: restored_model(kept, _HALF_LIVES, _NOW_NS), n, time.thread_time_ns)
    report.add(figure("  a model from its checkpoint", "ms", times, "once, at the start"))


# The same histograms as rows of two matrices, which an agent that does not load numpy cannot have.
def _numpy(report: Report, samples: dict[str, Usage], n: int) -> None:
    try:
        import numpy as np
    except ImportError:
        report.cannot("prediction with numpy: it is not installed")
        return
    cores = np.array([each.cpu_cores for each in samples.values()])
    sizes = np.array([each.memory_bytes for each in samples.values()])
    rows = np.arange(len(samples))
    cpu, memory = np.random.default_rng(17).random((len(samples), 158)), np.ones((len(samples), 205))
    shares = np.array([0.6, 0.9, 0.95, 0.98, 1.0])

    def train() -> None:
        for weights, values, first in ((cpu, cores, 0.025), (memory, sizes, 5.0 * MIB)):
            found = np.where(values < first, 0, np.log(values * 0.05 / first + 1) / np.log(1.05)).astype(int)
            weights[rows, np.minimum(found, weights.shape[1] - 1)] += 1.0

    def percentiles() -> None:
        for weights in (cpu, memory):
            sums = weights.cumsum(axis=1)
            (sums[:, None, :] >= (sums[:, -1:] * shares)[:, :, None]).argmax(axis=2)

    calls: tuple[tuple[str, Callable[[], None]], ...] = (("one sample", train), ("five percentiles", percentiles))
    for name, call in calls:
        times = times_ms(call, n, time.thread_time_ns)
        report.add(figure(f"  numpy: {name}", "ms", times, "234 histograms as rows of two matrices"))
