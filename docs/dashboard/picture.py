"""Run the dashboards' queries on a real Prometheus, and draw them: `docs/dashboard/picture.py record|draw`.

`record` (root) starts three agents on small nodes: n1 acts, and its best-effort pods grow, fill the page cache and burn
CPU beside latency-sensitive ones; n2 only watches a pod that grows; on n3 nothing happens. A Prometheus scrapes them
each second and judges rules.yaml. Then it asks each query of both dashboards and writes recording.json. `draw` makes
fleet.png and node.png from that file and from nothing else, with matplotlib, which has to be installed. It is no
Grafana: the panels are placed as there, the drawing is our own.
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

from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy, find_memory_hierarchy
from tests.contract.apiserver import until
from tests.deploy.programs import promtool
from tests.host.live_agent import LiveAgent
from tests.host.rigs.colocated_node import ColocatedNode
from tests.support.loads.workloads import Hog
from tests.support.nodes import MIB, NodeCgroup
from tests.support.ports import free_ports

HERE = Path(__file__).parent
MONITORING = HERE.parents[1] / "deploy/monitoring"
RECORDING = HERE / "recording.json"

_SECONDS, _EACH_S, _STEP_S = 180, 30, 2
_MIB, _WATCHED_MIB = 768, 320
_RATE = "15s"  # $__rate_interval of a scrape each second
_NODE_OF = {"fleet": ".*", "node": "n1"}


def record() -> None:
    """Run the nodes, ask the queries and write recording.json."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder, hierarchy = Path(name), find_memory_hierarchy()
        busy = stack.enter_context(ColocatedNode(hierarchy, folder, _MIB))
        given = ("--pods", busy.manifest(folder), "--node-cgroup", busy.node.path)
        agents = {"n1": stack.enter_context(_agent(folder, "n1", *given, "--enforce", "--executor", "cgroup"))}
        watched, pod = _watched(hierarchy, stack)
        manifest = watched.write_manifest(folder / "watched.json", 75, 70)
        agents["n2"] = stack.enter_context(_agent(folder, "n2", "--pods", manifest, "--node-cgroup", watched.path))
        idle = stack.enter_context(NodeCgroup(hierarchy.mount_point, hierarchy.version, _WATCHED_MIB * MIB))
        idle.add_pod("db", be=False)
        manifest = idle.write_manifest(folder / "idle.json", 75, 70)
        agents["n3"] = stack.enter_context(_agent(folder, "n3", "--pods", manifest, "--node-cgroup", idle.path))
        for each in agents.values():
            each.becomes_ready()
        port = stack.enter_context(_prometheus(folder, {name: each.port for name, each in agents.items()}))
        began_s = time.time()
        _press(busy, pod, began_s + _SECONDS)
        pages = {page: _asked(port, page, began_s, time.time()) for page in _NODE_OF}
        written = {"seconds": _SECONDS, "step_s": _STEP_S, "pages": pages}
        RECORDING.write_text(json.dumps(written, separators=(",", ":")) + "\n")


def _agent(folder: Path, name: str, *arguments: object) -> LiveAgent:
    own = folder / name
    own.mkdir()
    return LiveAgent(own, "--node-name", name, *arguments, keeps_frames=False)


def _watched(hierarchy: MemoryHierarchy, stack: contextlib.ExitStack) -> tuple[NodeCgroup, Path]:
    made = stack.enter_context(NodeCgroup(hierarchy.mount_point, hierarchy.version, _WATCHED_MIB * MIB))
    made.add_pod("db", be=False)
    return made, made.add_pod("report")[0]


# In each turn a best-effort pod of n1 surges, and search works; the one of n2 grows above the threshold, and ends.
def _press(busy: ColocatedNode, watched: Path, until_s: float) -> None:
    busy.starts()
    turn = 0
    while time.time() < until_s:
        running = [busy.takes(8), Hog(watched, _WATCHED_MIB * 8 // 10, rate_mib_s=20, hold_s=20)]
        busy.works(turn % 2 == 1)
        time.sleep(_EACH_S / 3)
        running.append(busy.surges("batch-join" if turn % 2 else "crawler"))
        time.sleep(_EACH_S / 3)
        running.append(busy.takes(5))
        time.sleep(_EACH_S / 3)
        for each in running:
            each.stop()
        turn += 1


@contextlib.contextmanager
def _prometheus(folder: Path, agents: dict[str, int]) -> Iterator[int]:
    (port,) = free_ports(1)
    config = folder / "prometheus.yaml"
    targets = [{"targets": [f"127.0.0.1:{agent}"], "labels": {"node": name}} for name, agent in agents.items()]
    job = {"job_name": "koordebpf", "scrape_interval": "1s", "static_configs": targets, "honor_labels": True}
    rules = {"global": {"evaluation_interval": "2s"}, "rule_files": [str(MONITORING / "rules.yaml")]}
    config.write_text(json.dumps({**rules, "scrape_configs": [job]}))
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


def _asked(port: int, page: str, began_s: float, ended_s: float) -> list[dict[str, Any]]:
    panels, row = [], {}
    written = json.loads((MONITORING / f"dashboards/{page}.json").read_text())
    for panel in (panel for each in written["panels"] for panel in (each, *each.get("panels", ()))):
        if panel["type"] == "row":
            row = panel
            continue
        series = [
            {"name": _legend(target, found["metric"]), "target": number, "labels": found["metric"], "values": values}
            for number, target in enumerate(panel["targets"])
            for found, values in _query(port, page, target, began_s, ended_s)
        ]
        kept = {key: panel[key] for key in ("type", "title", "gridPos", "fieldConfig")}
        columns = [target["legendFormat"] for target in panel["targets"]]
        of_row = {"row": row["title"], "is_closed": row["collapsed"]}
        panels.append({**kept, **of_row, "columns": columns, "series": series})
    return panels


# Values are those of each step; None: there was none. Of a table they are one.
def _query(
    port: int, page: str, target: dict[str, Any], began_s: float, ended_s: float
) -> Iterator[tuple[dict[str, Any], list[float | None]]]:
    expr = target["expr"].replace("$__rate_interval", _RATE).replace("$__range", f"{_SECONDS}s")
    expr = expr.replace("$node", _NODE_OF[page])
    is_now = target.get("instant", False)
    more = {"time": ended_s} if is_now else {"start": began_s, "end": ended_s, "step": _STEP_S}
    asked = urllib.parse.urlencode({"query": expr, **more})
    kind = "query" if is_now else "query_range"
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{kind}?{asked}", timeout=30) as answer:
        result = json.load(answer)["data"]["result"]
    for each in result:
        found = [each["value"]] if is_now else each["values"]
        values: list[float | None] = [None] * (1 if is_now else int(ended_s - began_s) // _STEP_S + 1)
        for at, value in found:
            if value not in ("NaN", "+Inf", "-Inf"):
                values[0 if is_now else round((at - began_s) / _STEP_S)] = float(f"{float(value):.5g}")
        yield each, values


def _legend(target: dict[str, Any], labels: dict[str, str]) -> str:
    text: str = target["legendFormat"]
    for name, value in labels.items():
        text = text.replace("{{" + name + "}}", value)
    return text


def draw() -> None:
    """Draw fleet.png and node.png from recording.json."""
    from drawing import draw_page

    recording = json.loads(RECORDING.read_text())
    for page, panels in recording["pages"].items():
        draw_page(panels, recording["step_s"], HERE / f"{page}.png")


if __name__ == "__main__":
    {"record": record, "draw": draw}[sys.argv[1]]()
