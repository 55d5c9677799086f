"""Record one `koordebpf demo`, and draw its eviction: `python docs/eviction/figure.py record|draw`.

`record` (root) runs the demo, reads the memory of its node and pods from outside the agent each 2 ms, and writes
recording.json. `draw` makes eviction.svg from that file and from nothing else.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from html import escape
from pathlib import Path
from typing import Any

from koordebpf.demo.story import LOWER_PERCENT, THRESHOLD_PERCENT
from koordebpf.errors import CgroupGone
from koordebpf.kernel.cgroup.hierarchy import CgroupMemory, MemoryHierarchy, find_memory_hierarchy
from koordebpf.state.stalls.sums import cgroup_used_bytes

HERE = Path(__file__).parent
RECORDING = HERE / "recording.json"
PICTURE = HERE / "eviction.svg"
PODS = ("web", "train", "hog")  # from the bottom of the picture to its top

_EVERY_S = 0.002
_WHOLE_MS = (-4000, 1500)  # of the crossing: the left half
_CLOSE_MS = (-20, 80)  # the right half, recorded at full resolution
_COARSE_MS = 25

Rows = list[list[float]]  # ms after the crossing, then used KiB of the node, web, train and hog


def record() -> None:
    """Run the demo and write recording.json.

    Raises:  CalledProcessError: the demo did not go as it should.
    """
    hierarchy = find_memory_hierarchy()
    with tempfile.TemporaryFile("w+") as out:
        demo = subprocess.Popen([sys.executable, "-m", "koordebpf", "demo", "--json"], stdout=out)
        samples = _sample(demo, hierarchy)
        out.seek(0)
        lines: list[dict[str, Any]] = [json.loads(line) for line in out]
    if demo.returncode != 0:
        raise subprocess.CalledProcessError(demo.returncode, "koordebpf demo --json")
    facts = lines[-1]["facts"]
    (eviction,) = facts["evictions"]
    (evicted,) = [line for line in lines if line["event"] == "evicted"]

    def ms(at_ns: int) -> float:
        return round((at_ns - facts["crossed_ns"]) / 1e6, 1)

    moments = {name: ms(eviction[f"{name}_ns"]) for name in ("seen", "decided", "sent", "freed")}
    kept = {
        "machine": f"Linux {'.'.join(platform.release().split('.')[:2])}, cgroup v{hierarchy.version}",
        "limit_kib": facts["limit_bytes"] >> 10,
        "sentence": evicted["text"],
        "moments_ms": {"begins": ms(facts["began_ns"]), **moments},
        "columns": ["ms", "node_kib", *(f"{name}_kib" for name in PODS)],
    }
    rows = _thin([[ms(at_ns), *(each >> 10 for each in used)] for at_ns, *used in samples])
    head = json.dumps(kept, indent=1, ensure_ascii=False).removesuffix("\n}")
    RECORDING.write_text(f'{head},\n "samples": [\n' + ",\n".join(f"  {json.dumps(row)}" for row in rows) + "\n ]\n}\n")


def _sample(demo: subprocess.Popen[bytes], hierarchy: MemoryHierarchy) -> list[list[int]]:
    # Rows of CLOCK_MONOTONIC ns and used bytes, from when all pods exist until their cgroups are removed.
    node = hierarchy.mount_point / f"koordebpf-demo-{demo.pid}"
    samples: list[list[int]] = []
    pods: list[Path] = []
    readers: list[CgroupMemory] = []
    while demo.poll() is None:
        if not readers and len(pods := [*node.glob("kubepods/b*/pod*")]) == len(PODS):
            readers = [CgroupMemory(path, hierarchy.version) for path in (node, *pods)]
        try:
            samples += [[time.monotonic_ns(), *(cgroup_used_bytes(each.read()) for each in readers)]] if readers else []
        except CgroupGone:
            break
        time.sleep(_EVERY_S)
    demo.wait()
    # web is the burstable pod; of the two best-effort ones the hog is the one that grew more.
    peaks = [max((row[2 + i] for row in samples), default=0) for i in range(len(pods))]
    order = sorted(range(len(pods)), key=lambda i: (pods[i].parent.name == "besteffort", peaks[i]))
    return [[*row[:2], *(row[2 + i] for i in order)] for row in samples]


def _thin(rows: Rows) -> Rows:
    kept: Rows = []
    for row in rows:
        is_close = _CLOSE_MS[0] <= row[0] <= _CLOSE_MS[1]
        if not _WHOLE_MS[0] - _COARSE_MS <= row[0] <= _WHOLE_MS[1] + _COARSE_MS:
            continue
        if is_close or not kept or row[0] - kept[-1][0] >= _COARSE_MS:
            kept.append(row)
    return kept


class _Panel:
    """One diagram: where it lies in the picture, and which times it shows. Pixels, ms, MiB."""

    def __init__(self, left: int, width: int, times_ms: tuple[int, int]) -> None:
        self.left, self.right = left, left + width
        self.times_ms = times_ms

    def x(self, ms: float) -> float:
        """Return where a time is."""
        first, last = self.times_ms
        return round(self.left + (ms - first) / (last - first) * (self.right - self.left), 1)


_TOP, _BOTTOM = 84, 340
_STYLE = """
  .bg { fill: #ffffff; stroke: #d0d7de }
  text { font-family: system-ui, sans-serif; font-size: 13px; fill: #1f2328 }
  .title { font-size: 15px; font-weight: 600 } .small { font-size: 12px; fill: #59636e }
  .grid { stroke: #d0d7de } .axis { stroke: #818b98 } .mark { stroke: #59636e; stroke-dasharray: 2 3 }
  .limit { stroke: #cf222e; stroke-width: 1.5; stroke-dasharray: 6 4 } text.limit { stroke: none; fill: #cf222e }
  .node { fill: none; stroke: #1f2328; stroke-width: 1.5 }
  .web { fill: #2da44e } .train { fill: #54aeff } .hog { fill: #fb8f44 }
  @media (prefers-color-scheme: dark) {
    .bg { fill: #0d1117; stroke: #3d444d } text { fill: #f0f6fc } .small { fill: #9198a1 }
    .grid { stroke: #262c36 } .axis { stroke: #656c76 } .mark { stroke: #9198a1 } .node { stroke: #f0f6fc }
    .limit { stroke: #ff7b72 } text.limit { fill: #ff7b72 }
    .web { fill: #238636 } .train { fill: #1f6feb } .hog { fill: #bd561d }
  }
"""


def draw() -> str:
    """Return the picture of recording.json as SVG."""
    recording: dict[str, Any] = json.loads(RECORDING.read_text())
    limit_mib = recording["limit_kib"] / 1024
    moments = recording["moments_ms"]

    def y(mib: float) -> float:
        return round(_BOTTOM - mib / limit_mib * (_BOTTOM - _TOP), 1)

    whole, close = _Panel(56, 430, _WHOLE_MS), _Panel(560, 280, _CLOSE_MS)
    parts = [
        '<rect class="bg" x="0.5" y="0.5" width="879" height="427" rx="6"/>',
        _text(18, 28, "koordebpf demo: memory that a node of 1 GiB uses, page cache left out", "title"),
    ]
    for panel, step_ms, unit_ms, unit in ((whole, 1000, 1000, "s"), (close, 20, 1, "ms")):
        parts += _axes(panel, y, limit_mib, range(panel.times_ms[0], panel.times_ms[1] + 1, step_ms), unit_ms, unit)
        parts += _areas(panel, y, recording["samples"])
        for percent in (THRESHOLD_PERCENT, LOWER_PERCENT):
            kind = "limit" if percent == THRESHOLD_PERCENT else "mark"
            at = y(limit_mib * percent / 100)
            parts.append(f'<line class="{kind}" x1="{panel.left}" x2="{panel.right}" y1="{at}" y2="{at}"/>')
    above = y(limit_mib * THRESHOLD_PERCENT / 100) - 6
    rule = f"evicts from {THRESHOLD_PERCENT} % on, down to {LOWER_PERCENT} %"
    parts.append(_text(whole.left + 6, above, rule, "limit"))
    parts += _moments(close, moments)
    begins = whole.x(moments["begins"])
    parts.append(f'<line class="mark" x1="{begins}" x2="{begins}" y1="{_TOP + 100}" y2="{_BOTTOM}"/>')
    parts.append(_text(begins - 5, _TOP + 112, "hog begins to grow", "small", "end"))
    labels = ("web: latency-sensitive", "train: best-effort, priority 5500", "hog: best-effort, priority 5000")
    for i, name in enumerate(PODS):
        parts.append(f'<rect class="{name}" x="{56 + i * 250}" y="372" width="12" height="12" rx="2"/>')
        parts.append(_text(74 + i * 250, 382, labels[i]))
    parts.append(_text(18, 412, f"{recording['sentence'].split(' [')[0]}  ({recording['machine']})", "small"))
    body = "\n".join(parts)
    title = (
        f"The hog is chosen {moments['decided']} ms after the node crosses its threshold, and its memory comes back."
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="880" height="428" viewBox="0 0 880 428" role="img">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n{body}\n</svg>\n"
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _axes(
    panel: _Panel, y: Callable[[float], float], limit_mib: float, ticks_ms: Iterable[int], unit_ms: int, unit: str
) -> list[str]:
    parts = []
    for percent in (0, 25, 50, 75, 100):
        at = y(limit_mib * percent / 100)
        kind = "grid" if percent else "axis"
        parts.append(f'<line class="{kind}" x1="{panel.left}" x2="{panel.right}" y1="{at}" y2="{at}"/>')
        parts.append(_text(panel.left - 6, at + 4, f"{percent} %", "small", "end"))
    for ms in ticks_ms:
        sign = "+" if ms > 0 else "−" if ms < 0 else ""
        parts.append(_text(panel.x(ms), _BOTTOM + 18, f"{sign}{abs(ms) // unit_ms} {unit}", "small", "middle"))
    return parts


# Stacked, and the node's own use above them as a line.
def _areas(panel: _Panel, y: Callable[[float], float], rows: Rows) -> list[str]:
    first, last = panel.times_ms
    shown = [row for row in rows if first <= row[0] <= last]
    parts = []
    below = [0.0] * len(shown)
    for i, name in enumerate(PODS):
        top = [base + row[2 + i] / 1024 for base, row in zip(below, shown, strict=True)]
        edge = [f"{panel.x(row[0])},{y(mib)}" for row, mib in zip(shown, top, strict=True)]
        back = [f"{panel.x(row[0])},{y(mib)}" for row, mib in zip(shown, below, strict=True)]
        parts.append(f'<polygon class="{name}" points="{" ".join([*edge, *reversed(back)])}"/>')
        below = top
    line = " ".join(f"{panel.x(row[0])},{y(row[1] / 1024)}" for row in shown)
    return [*parts, f'<polyline class="node" points="{line}"/>']


def _moments(panel: _Panel, moments: dict[str, float]) -> list[str]:
    crossed, freed = panel.x(0), panel.x(moments["freed"])
    return [
        f'<line class="mark" x1="{crossed}" x2="{crossed}" y1="{_TOP - 34}" y2="{_BOTTOM}"/>',
        _text(crossed + 5, _TOP - 24, "threshold crossed", "small"),
        _text(crossed + 5, _TOP - 8, f"decided +{moments['decided']} ms, SIGKILL +{moments['sent']} ms", "small"),
        f'<line class="mark" x1="{freed}" x2="{freed}" y1="{_TOP + 20}" y2="{_BOTTOM}"/>',
        _text(freed + 5, _TOP + 32, f"memory back +{moments['freed']:.0f} ms", "small"),
    ]


if __name__ == "__main__":
    if sys.argv[1:] == ["record"]:
        record()
    elif sys.argv[1:] == ["draw"]:
        PICTURE.write_text(draw())
    else:
        sys.exit(__doc__)
