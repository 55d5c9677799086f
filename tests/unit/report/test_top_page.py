"""Rows and page of `koordebpf top`."""

from __future__ import annotations

import io
import json
import re

import msgspec
import pytest
from jsonschema import Draft202012Validator
from rich.console import Console

from koordebpf.kernel.signals import SignalQuality
from koordebpf.report.top import (
    SORTS,
    TopPage,
    cut,
    pod_rows,
    short_qos,
    sorted_rows,
    time_text,
    top_cpu,
    top_schema,
)
from koordebpf.state.cpu.measured import BeQuota, CpuMeasured, CpuUsage
from koordebpf.state.measured import (
    LedgerRow,
    LedgerView,
    Measured,
    MemoryParts,
    NodeForecast,
    NodeMeasure,
    Party,
    PsiLine,
    StallParts,
    StallShares,
    StrayMeasure,
    TimeTo,
)
from koordebpf.state.view import PodView
from koordebpf.tools.top.choice import KEY_LINE, Choice, Level, Sort, pressed
from koordebpf.tools.top.page import page_lines
from koordebpf.tools.top.screen import Screen
from tests.support.values.cpu_nodes import be_tree
from tests.support.values.machines import machine

MIB = 1 << 20
S = 1_000_000_000
SOON = TimeTo(40 * S, 48 * S, 60 * S)
LATER = TimeTo(600 * S, 720 * S, None)
NODE = NodeMeasure(
    "cgroup",
    1024 * MIB,
    512 * MIB,
    growth_bytes_per_s=30.0 * MIB,
    stall=StallParts(10 * S, 250_000_000, 0, 3),
    psi_some=PsiLine(1.25, 0.0, 0.0, 9),
    psi_full=PsiLine(0.5, 0.0, 0.0, 3),
)
QUALITY = SignalQuality("co-re", "timed", "traced", "one pass", "backend co-re: each stall is timed")
HOG = Party("uid-hog", "pod", "shop/hog", "main", "uid-hog")
WEB = Party("uid-web", "pod", "shop/web", "main", "uid-web")
OWN = Party("own limit", "own limit", "own limit")
LEDGER = LedgerView(
    60 * S,
    1_260_000_000,
    0,
    (LedgerRow(WEB, HOG, 1_200_000_000, 5 * S, 17 * S), LedgerRow(HOG, OWN, 60_000_000, 3 * S, 4 * S)),
)


def shares(some: float, full: float | None = None, *, derived: bool = True, most: float | None = None) -> StallShares:
    return StallShares(
        PsiLine(some, 0.0, 0.0, 1),
        None if full is None else PsiLine(full, 0.0, 0.0, 1),
        derived,
        None if most is None else PsiLine(most, 0.0, 0.0, 1),
    )


def pod(name: str, anon_mib: int | None, **more: object) -> PodView:
    memory = None if anon_mib is None else MemoryParts(anon_mib * MIB, anon_mib * MIB, 0, 5 * MIB, 0, 0)
    return PodView(name, "shop", name, "Running", False, "BestEffort", "BE", 5000, None, False, memory=memory, **more)  # type: ignore[arg-type]


PODS = (
    pod("small", 10, growth_bytes_per_s=2e6, forecast=LATER),
    pod("big", 300, growth_bytes_per_s=-16.2 * MIB),
    pod("unmeasured", None),
    pod("slow", 20, stall=StallParts(10 * S, 120_000_000, 3_000, 1, 1), shares=shares(12.5), forecast=SOON),
)
MEASURED = Measured(
    2, 1, NODE, strays=(StrayMeasure(9, "kubepods/pod-gone", MemoryParts(40 * MIB, 40 * MIB, 0, 0, 0, 0)),)
)


def page(sort: Sort = "usage", level: Level = "pod", pods: tuple[PodView, ...] = PODS) -> TopPage:
    return TopPage(
        "koordebpf.top/v1",
        "2026-01-02T03:04:05+00:00",
        level,
        sort,
        1024 * MIB,
        800 * MIB,
        NODE,
        NodeForecast(threshold=SOON, oom=LATER),
        QUALITY,
        tuple(sorted_rows(pod_rows(pods, MEASURED), sort)),
        LEDGER,
    )


def text(shown: TopPage, choice: Choice | None = None) -> list[str]:
    return [line for line, _ in page_lines(shown, choice or Choice())]


@pytest.mark.parametrize(
    ("sort", "first"),
    [
        ("usage", ["shop/big", "? pod-gone", "shop/slow", "shop/small", "shop/unmeasured"]),
        ("growth", ["shop/small", "? pod-gone", "shop/slow", "shop/unmeasured", "shop/big"]),
        ("stall", ["shop/slow", "? pod-gone", "shop/big"]),
        ("ttt", ["shop/slow", "shop/small", "? pod-gone"]),
        ("name", ["? pod-gone", "shop/big", "shop/slow", "shop/small", "shop/unmeasured"]),
    ],
)
def test_sorts(sort: Sort, first: list[str]) -> None:
    assert [row.name for row in page(sort).rows][: len(first)] == first
    assert sort in SORTS


def test_the_page_fits_80_columns_and_absent_is_a_dash() -> None:
    assert text(page()) == [
        "node 512 MiB of 1.0 GiB (50 %), grows 30.0MiB/s, evicts above 800 MiB",
        "evicts in 48s 40s–60s · full in 12m 10m–∞",
        "stalled 250 ms in 10 s · PSI some 1.2 full 0.5 %",
        "signals: co-re, stalls timed, births traced, ~ worked out from them",
        "POD                      QOS       USED GROWTH/s  SOME%  FULL% BY         OOM IN",
        "shop/big                 BE      300MiB -16.2MiB      ·      ·                 -",
        "? pod-gone                      40.0MiB        -      ·      ·                 -",
        "shop/slow                BE     20.0MiB        -  ~12.5      - node  48s 40s–60s",
        "shop/small               BE     10.0MiB   1.9MiB      ·      ·         12m 10m–∞",
        "shop/unmeasured          BE           -        -      ·      ·                 -",
    ]


@pytest.mark.parametrize(
    ("given", "cells"),
    [
        (shares(12.5, 12.5), ["~12.5", "~12.5"]),
        (shares(12.5, None), ["~12.5", "-"]),
        (shares(12.5, 3.0, derived=False), ["12.5", "3.0"]),
        (shares(12.5, None, most=40.0), ["≥12.5", "-"]),
        (shares(0.0, 0.0, derived=False), ["·", "·"]),
        (shares(100.0, 100.0), ["~100.0", "~100.0"]),
    ],
)
def test_shares_say_what_they_are(given: StallShares, cells: list[str]) -> None:
    (line,) = (line for line in text(page(pods=(pod("a", 1, shares=given),))) if line.startswith("shop/a"))
    assert line.split()[4:6] == cells
    assert len(line) == 80


def test_nothing_is_wider_than_80_columns_whatever_the_numbers() -> None:
    worst = pod(
        "p" * 60,
        9_999_999,
        growth_bytes_per_s=-999e9,
        stall=StallParts(10 * S, 1, 0),
        shares=shares(100.0, 100.0),
        forecast=TimeTo(99 * S, 99 * 60 * S, 99 * 3600 * S),
    )
    shown = page(pods=(worst,))
    assert all(len(line) <= 80 for line in text(shown) + text(shown, Choice(ledger=True)))
    assert any(line.endswith("99m 99s–99h") for line in text(shown))
    assert len(KEY_LINE) <= 80


@pytest.mark.parametrize(
    ("quota_us", "usage", "expected"),
    [
        (30_000, CpuUsage(S, 1500, 250), "CPUs: best-effort 0.25 of at most 0.30, node 1.50 of 8"),
        (None, CpuUsage(S, 1500, 250), "CPUs: best-effort 0.25 of at most 4.00, node 1.50 of 8"),
        (None, CpuUsage(S, 1500, None), None),  # no best-effort directory
        (None, None, None),
    ],
)
def test_who_uses_the_cpus(quota_us: int | None, usage: CpuUsage | None, expected: str | None) -> None:
    measured = CpuMeasured(machine(cores=8), usage, be_tree(range(4)), be_quota=BeQuota(quota_us))
    shown = msgspec.structs.replace(page(), cpu=top_cpu(measured))
    said = [line for line, _ in page_lines(shown, Choice()) if line.startswith("CPUs")]
    assert said == ([expected] if expected else [])


def test_a_page_without_rows_says_so() -> None:
    shown = msgspec.structs.replace(page(), rows=())
    assert text(shown)[-1] == "no pod is known"


def test_a_pod_that_stalls_is_red() -> None:
    styles = {line.split()[0]: style for line, style in page_lines(page(), Choice())}
    assert (styles["shop/slow"], styles["shop/small"], styles["POD"]) == ("red", "", "bold")


def test_the_ledger_view() -> None:
    assert text(page(), Choice(ledger=True))[4:] == [
        "STALLED                    ← ON ACCOUNT OF                  ms/s     SINCE",
        "shop/web/main              ← shop/hog/main                  20.0      12 s",
        "shop/hog/main              ← its own limit                   1.0       1 s",
    ]


@pytest.mark.parametrize(
    ("left", "shown"),
    [
        (None, "-"),
        (TimeTo(0, 0, 0), "now"),
        (SOON, "48s 40s–60s"),
        (LATER, "12m 10m–∞"),
        (TimeTo(99 * S, 99 * 60 * S, 99 * 3600 * S), "99m 99s–99h"),
        (TimeTo(100 * S, 6000 * S, 86_400 * 100 * S), "2h 2m–100d"),
    ],
)
def test_a_time_has_two_digits_and_its_interval(left: TimeTo | None, shown: str) -> None:
    assert time_text(left) == shown


def test_keys() -> None:
    start = Choice()
    assert pressed(start, "s").sort == "stall"
    assert pressed(pressed(start, "l"), "g") == Choice("growth")
    assert [pressed(start, "v").level, pressed(Choice(level="cgroup"), "v").level] == ["container", "pod"]
    assert pressed(start, "l").ledger and not pressed(pressed(start, "l"), "l").ledger
    assert [pressed(start, key).stop for key in ("q", "\x03", "\x04", "x")] == [True, True, True, False]
    assert pressed(start, "x") is start


def test_json_is_what_the_schema_says() -> None:
    schema = top_schema()
    Draft202012Validator.check_schema(schema)
    value = json.loads(msgspec.json.encode(page()))
    Draft202012Validator(schema).validate(value)
    assert value["rows"][0]["name"] == "shop/big"
    assert not Draft202012Validator(schema).is_valid({**value, "level": "galaxy"})
    assert len(cut(page(), 2).rows) == 2
    assert cut(page(), None) == page()


def test_qos_in_five_columns() -> None:
    assert [short_qos("LSR", "Guaranteed"), short_qos("", "Burstable"), short_qos("", None)] == ["LSR", "burst", ""]


@pytest.mark.parametrize("height", [24, 8])
def test_the_screen_is_redrawn_in_place_and_restored(height: int) -> None:
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=True, width=80, height=height, color_system=None, highlight=False, _environ={}
    )
    with Screen(console) as screen:
        begin = out.tell()
        for _ in range(3):
            screen.show(page(), Choice())
        drawn = out.getvalue()[begin:]
    assert drawn.count("q)uit") == 3
    assert "\x1b[2J" not in drawn  # an erased screen is what flickers
    assert all(
        len(line) <= 80 for line in re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", drawn.replace("\x1b[H", "\n")).splitlines()
    )
    assert out.getvalue().startswith("\x1b[?1049h")
    assert out.getvalue().endswith("\x1b[?25h\x1b[?1049l")
