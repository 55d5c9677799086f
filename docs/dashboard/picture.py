"""Run the dashboard's queries on a real Prometheus, and draw them: `python docs/dashboard/picture.py record|draw`.

`record` (root) starts an agent that enforces on a small node, in which best-effort pods grow again and again beside a
latency-sensitive one, and a Prometheus that scrapes it each second; then it asks each query of dashboard.json and
writes recording.json. `draw` makes dashboard.png from that file and from nothing else, with matplotlib, which has to be
installed. It is no Grafana: the panels are placed as there, the drawing is our own.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from tests.contract.apiserver import until
from tests.deploy.programs import promtool
from tests.host.live_agent import LiveAgent
from tests.support.nodes import MIB, NodeCgroup
from tests.support.ports import free_ports

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
DASHBOARD = ROOT / "deploy/monitoring/dashboard.json"
RECORDING = HERE / "recording.json"
PICTURE = HERE / "dashboard.png"
LOADS = ROOT / "tests/workloads/build"

_ROWS = ("At a glance", "Memory", "Service level indicators", "Evictions", "What agents cost")
_SECONDS, _EACH_S = 180, 20
_NODE_MIB, _HOG_MIB = 768, 720
_RATE = "15s"  # $__rate_interval of a scrape each second


def record() -> None:
    """Run the node, ask the queries and write recording.json."""
    hierarchy = find_memory_hierarchy()
    with (
        tempfile.TemporaryDirectory() as name,
        NodeCgroup(hierarchy.mount_point, hierarchy.version, _NODE_MIB * MIB) as node,
    ):
        folder = Path(name)
        (web,) = node.add_pod("web", be=False)
        hogs = [node.add_pod(f"train-{number}", priority=5000 + number)[0] for number in range(3)]
        manifest = node.write_manifest(folder / "pods.json", 80, 70)
        given = ("--pods", manifest, "--node-cgroup", node.path, "--enforce", "--executor", "cgroup")
        with LiveAgent(folder, *given) as agent:
            agent.becomes_ready()
            with _prometheus(folder, agent.port) as port:
                began_s = time.time()
                _press(web, hogs, began_s + _SECONDS)
                RECORDING.write_text(json.dumps(_asked(port, began_s, time.time())) + "\n")


# A best-effort pod grows in each turn; the latency-sensitive one allocates and frees meanwhile.
def _press(web: Path, hogs: list[Path], until_s: float) -> None:
    turn = 0
    while time.time() < until_s:
        loads = ((_HOG_MIB, hogs[turn % len(hogs)], 60), (_NODE_MIB // 5, web, 40))
        running = [
            subprocess.Popen(
                [
                    LOADS / "hog",
                    "--mib",
                    str(mib),
                    "--rate-mib-s",
                    str(rate),
                    "--hold",
                    "3",
                    "--cgroup",
                    pod / "cgroup.procs",
                ],
                stdout=subprocess.DEVNULL,
            )
            for mib, pod, rate in loads
        ]
        time.sleep(_EACH_S)
        for each in running:
            each.kill()
            each.wait()
        turn += 1


@contextlib.contextmanager
def _prometheus(folder: Path, agent_port: int) -> Iterator[int]:
    (port,) = free_ports(1)
    config = folder / "prometheus.yaml"
    target = {"targets": [f"127.0.0.1:{agent_port}"], "labels": {"node": "n1"}}
    job = {"job_name": "koordebpf", "scrape_interval": "1s", "static_configs": [target], "honor_labels": True}
    config.write_text(json.dumps({"scrape_configs": [job]}))
    program = promtool().with_name("prometheus")
    options = (f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}")
    command = [program, *options, f"--web.listen-address=127.0.0.1:{port}"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: _is_ready(port), "Prometheus")
            yield port
        finally:
            process.terminate()


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _asked(port: int, began_s: float, ended_s: float) -> dict[str, Any]:
    panels, row = [], ""
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        if panel["type"] == "row":
            row = panel["title"]
            continue
        if row not in _ROWS:
            continue
        series = [
            {"name": _legend(target["legendFormat"], found["metric"]), "values": found["values"]}
            for target in panel["targets"]
            for found in _query(port, target["expr"], began_s, ended_s)
        ]
        kept = {key: panel[key] for key in ("type", "title", "gridPos")}
        unit = panel["fieldConfig"]["defaults"].get("unit", "short")
        panels.append({**kept, "row": row, "unit": unit, "series": series})
    return {"from_s": began_s, "seconds": round(ended_s - began_s), "panels": panels}


def _query(port: int, expr: str, began_s: float, ended_s: float) -> list[dict[str, Any]]:
    expr = expr.replace("$__rate_interval", _RATE).replace("$node", ".*")
    asked = urllib.parse.urlencode({"query": expr, "start": began_s, "end": ended_s, "step": 1})
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query_range?{asked}", timeout=30) as answer:
        result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    for each in result:
        each["values"] = [
            [round(at - began_s), float(f"{float(value):.5g}")] for at, value in each["values"] if value != "NaN"
        ]
    return result


def _legend(text: str, labels: dict[str, str]) -> str:
    for name, value in labels.items():
        text = text.replace("{{" + name + "}}", value)
    return text


def draw() -> None:
    """Draw dashboard.png from recording.json."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    recording = json.loads(RECORDING.read_text())
    panels = recording["panels"]
    height = _pack(panels)
    pyplot.style.use("dark_background")
    pyplot.rcParams.update(
        {"font.size": 7, "axes.titlesize": 8, "legend.fontsize": 6, "axes.grid": True, "grid.alpha": 0.2}
    )
    figure = pyplot.figure(figsize=(12, height * 0.23), dpi=90)
    for panel in panels:
        place = panel["gridPos"]
        left, width = place["x"] / _WIDTH, place["w"] / _WIDTH
        bottom, tall = 1 - (place["y"] + place["h"]) / height, place["h"] / height
        axes = figure.add_axes((left + 0.055, bottom + 0.012, width - 0.07, tall - 0.03))
        axes.set_title(panel["title"], loc="left")
        _KINDS.get(panel["type"], _lines)(axes, panel, recording["seconds"])
    figure.savefig(PICTURE, metadata={"Software": None})


# Rows that are left out leave no gap; return the height of all.
def _pack(panels: list[dict[str, Any]]) -> int:
    top = 0
    for row in _ROWS:
        places = [panel["gridPos"] for panel in panels if panel["row"] == row]
        least = min(place["y"] for place in places)
        for place in places:
            place["y"] += top - least
        top = max(place["y"] + place["h"] for place in places)
    return top


def _stat(axes: Any, panel: dict[str, Any], _seconds: int) -> None:
    axes.axis("off")
    values = [value for each in panel["series"][:1] for _, value in each["values"]]
    last = values[-1] if values else None
    shown = "no data" if last is None else _written(last, panel["unit"])
    axes.text(0, 0.2, shown, fontsize=18, color="tab:green", transform=axes.transAxes)


def _lines(axes: Any, panel: dict[str, Any], seconds: int) -> None:
    for each in panel["series"]:
        at, values = zip(*each["values"], strict=True) if each["values"] else ((), ())
        axes.plot(at, values, linewidth=1, label=each["name"])
    axes.set_xlim(0, seconds)
    axes.yaxis.set_major_formatter(lambda value, _: _written(value, panel["unit"]))
    if panel["series"]:
        if panel["title"] in _MOST:
            axes.set_ylim(0, _MOST[panel["title"]])
        axes.legend(loc="upper left", ncols=2, framealpha=0.4)
    else:
        axes.text(0.5, 0.5, "no data", ha="center", transform=axes.transAxes)


def _heat(axes: Any, panel: dict[str, Any], seconds: int) -> None:
    names = [each["name"] for each in panel["series"]]
    cells = [[0.0] * (seconds + 1) for _ in names]
    for row, each in zip(cells, panel["series"], strict=True):
        for at, value in each["values"]:
            row[min(at, seconds)] = value
    axes.imshow(cells or [[0.0]], aspect="auto", interpolation="nearest", cmap="inferno")
    axes.set_yticks(range(len(names)), names)
    axes.grid(visible=False)


def _written(value: float, unit: str) -> str:
    if unit in ("bytes", "Bps"):
        return f"{value / 2**20:.4g} MiB"
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "s" and 0 < abs(value) < 1:
        return f"{1000 * value:.3g} ms"
    return f"{value:.4g}" + {"s": " s", "ms": " ms"}.get(unit, "")


_WIDTH = 24  # of Grafana's grid
_MOST = {"Until a mark is reached": 120}  # what is hours away hides the rest
_KINDS = {"stat": _stat, "heatmap": _heat}


if __name__ == "__main__":
    {"record": record, "draw": draw}[sys.argv[1]]()
