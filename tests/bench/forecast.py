"""How good the time-to-threshold is: forecast against what then happened, on made-up curves with a fixed seed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator

import msgspec

from koordebpf.state.forecast import SOONEST, GrowthHistory, time_to
from koordebpf.units import GIB, MIB, NS_PER_MS, NS_PER_S
from tests.bench.figure import at_most, figure
from tests.bench.report import Report

_FIXED_BYTES_PER_S = 6000 * MIB  # earlyoom's and nohang's assumption of how fast memory can be filled
_NEVER_S = float("inf")
_KEY = "node"

Curve = Callable[[random.Random], Iterator[float]]  # bytes a step, from the first one on


def ramp(chance: random.Random) -> Iterator[float]:
    """Stand still for a while, then grow at one rate."""
    idle, rate = chance.randint(0, 60), chance.uniform(2, 40) * MIB
    for at in range(100_000):
        yield GIB + max(at - idle, 0) * rate


def step(chance: random.Random) -> Iterator[float]:
    """Jump now and then, and stand still in between."""
    used, next_at = float(GIB), chance.randint(10, 60)
    for at in range(100_000):
        if at == next_at:
            used += chance.uniform(20, 200) * MIB
            next_at += chance.randint(30, 120)
        yield used


def burst(chance: random.Random) -> Iterator[float]:
    """Grow for a part of each period only."""
    rate, period = chance.uniform(20, 120) * MIB, chance.randint(4, 16)
    active = max(1, round(period * chance.uniform(0.2, 0.6)))
    used = float(GIB)
    for at in range(100_000):
        if at % period < active:
            used += rate
        yield used


def sawtooth(chance: random.Random) -> Iterator[float]:
    """Grow and fall back in each period, a little less than it grew: a collector of garbage with a leak."""
    period, rise = chance.randint(4, 16), chance.uniform(100, 400) * MIB
    leak = chance.uniform(0.05, 0.4) * rise
    for at in range(100_000):
        teeth, phase = divmod(at, period)
        yield GIB + teeth * leak + rise * phase / period


class Score(msgspec.Struct):
    """What came of all the forecasts on one kind of curve."""

    errors: list[float]
    naive: list[float]
    fixed: list[float]
    widths: list[float]
    covered: int = 0
    asked: int = 0
    silent: int = 0  # no forecast, though it was reached


def run(curve: Curve, noise_bytes: float, step_ns: int, n: int, seed: int) -> Score:
    """Let `n` curves come to a threshold, and ask at moments on the way."""
    chance = random.Random(seed)
    score = Score([], [], [], [])
    for _ in range(n):
        values = []
        limit = GIB + chance.uniform(2, 6) * GIB
        for clean in curve(chance):
            values.append(clean + chance.gauss(0, noise_bytes) if noise_bytes else clean)
            if values[-1] >= limit or len(values) >= 4_000:
                break
        reached_at = len(values) - 1 if values[-1] >= limit else None
        history: GrowthHistory[str] = GrowthHistory(step_ns, 256 * step_ns)
        asked = set(chance.sample(range(20, len(values)), min(20, len(values) - 20))) if len(values) > 40 else set()
        for at, value in enumerate(values):
            history.push((at + 1) * step_ns, {_KEY: int(value)})
            if at not in asked or values[at] >= limit:
                continue
            truth = (reached_at - at) if reached_at is not None else _NEVER_S
            _judge(score, history, int(limit - value), value - values[at - 1], truth, step_ns)
    return score


def _judge(
    score: Score, history: GrowthHistory[str], room: int, last_growth: float, truth: float, step_ns: int
) -> None:
    # Everything in steps.
    forecast = time_to(room, history.growths(_KEY))
    if truth == _NEVER_S:
        return
    score.asked += 1
    score.naive.append(min(abs(room / last_growth - truth) / truth, 10.0) if last_growth > 0 else 10.0)
    score.fixed.append(abs(room / _FIXED_BYTES_PER_S * NS_PER_S / step_ns - truth) / truth)
    if forecast is None:
        score.silent += 1
        return
    low, point = forecast.low_ns / step_ns, forecast.point_ns / step_ns
    high = _NEVER_S if forecast.high_ns is None else forecast.high_ns / step_ns
    score.errors.append(abs(point - truth) / truth)
    # A sample is a step apart: what is crossed between two of them is seen at the second.
    score.covered += low - 1 <= truth <= high + 1
    if high != _NEVER_S:
        score.widths.append((high - low) / truth)


def forecast(report: Report) -> None:
    """Compare the forecast with the slope of the last two samples and with a fixed rate; then what it costs."""
    n = 20 if report.quick else 200
    for name, curve in (("ramp", ramp), ("step", step), ("burst", burst), ("sawtooth", sawtooth)):
        for noise_bytes in (0, 16 * MIB):
            score = run(curve, noise_bytes, NS_PER_S, n, seed=7)
            title = f"{name}, noise {noise_bytes // MIB} MiB" if noise_bytes else name
            covered = 100 * score.covered / max(score.asked - score.silent, 1)
            method = (
                f"{score.asked} moments on {n} curves, a sample each second; at {score.silent} no forecast;"
                f" the truth lay in the interval {covered:.1f} %; {len(score.widths)} intervals had an upper end"
            )
            # Steps come when they come: what was seen of them tells little of the next.
            reach = None if curve is step else 10
            missed = 100 - covered
            percents = [100 * error for error in score.errors]
            report.add(figure(f"{title}: error of the point", "%", percents, method))
            report.add(at_most("  truth outside the interval", "%", missed, reach, "of all that were forecast"))
            if score.widths:
                widths = [100 * width for width in score.widths]
                report.add(figure("  width of the interval", "%", widths, "of the truth, where it has an upper end"))
            report.add(figure("  naive", "%", [100 * e for e in score.naive], "slope of the last two samples; ≤ 1000"))
            report.add(figure("  fixed rate", "%", [100 * e for e in score.fixed], "6000 MiB/s, as earlyoom assumes"))
    _cost(report)


def _cost(report: Report) -> None:
    history: GrowthHistory[int] = GrowthHistory()
    samples, n = [], 300
    for at in range(n):
        values = {key: GIB + key * at * MIB for key in range(330)}
        rooms = {key: 700 * GIB - value for key, value in values.items()}
        started_ns = time.thread_time_ns()
        history.push(at * 1000 * NS_PER_MS, values)
        for key in history.soonest(rooms, SOONEST):
            time_to(rooms[key], history.growths(key))
        samples.append((time.thread_time_ns() - started_ns) / 1e6)
    method = f"CPU time of a sample of 330 cgroups that all grow, and of the {SOONEST} soonest's forecast"
    report.add(figure("cost of a forecast for 330 cgroups", "ms", samples, method, reach_p50=0.3))
    report.add(at_most("samples kept", "", len(history), 128, "of 300 s, one each second"))
