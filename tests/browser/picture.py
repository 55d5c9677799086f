"""`python -m tests.browser.picture FOLDER`: record a real shortage on this kernel, show its page in Chromium (root).

A cgroup of 1 GiB is the node. Best-effort pods grow in it beside latency-sensitive ones, an agent with its recorder
evicts them, and what it recorded becomes incident.html, light.png, dark.png, paper.pdf and the docs' picture.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from tests.browser.chromium import chromium
from tests.support.agent_process import AgentProcess
from tests.support.loads.workloads import Hog
from tests.support.nodes import MIB, NodeCgroup

_ROOT = Path(__file__).parents[2]
_THRESHOLD, _LOWER = 80, 65
_BE = (("etl-nightly", 90, 4), ("train-resnet", 150, 6), ("log-compact", 60, 3), ("crawler", 40, 2))  # MiB, MiB/s
_LS = (("checkout", 170), ("search", 120))
_QUIET_S = 20.0


def record(kept: Path) -> Path:
    """Let an agent evict on a node of this kernel twice; return what its recorder wrote, below `kept`.

    Raises:  RuntimeError: nothing was evicted.
    """
    hierarchy = find_memory_hierarchy()
    with (
        ExitStack() as ending,
        NodeCgroup(hierarchy.mount_point, hierarchy.version, 1024 * MIB) as node,
        tempfile.TemporaryDirectory() as name,
    ):
        places = {pod: node.add_pod(pod, be=False)[0] for pod, _ in _LS} | {
            pod: node.add_pod(pod)[0] for pod, *_ in _BE
        }
        places["batch-join"] = node.add_pod("batch-join")[0]
        manifest = node.write_manifest(Path(name) / "pods.json", _THRESHOLD, _LOWER)
        audit = Path(name) / "audit.jsonl"
        loads = [(pod, mib, 40) for pod, mib in _LS] + list(_BE)
        agent = AgentProcess(node, manifest, "--recorder-folder", str(kept), audit=audit)
        ending.callback(agent.close)
        for pod, mib, rate in loads:
            ending.callback(Hog(places[pod], mib, rate_mib_s=rate, hold_s=600).stop)
        time.sleep(_QUIET_S)
        for number in range(2):
            hog = Hog(places["batch-join"] if number == 0 else places["crawler"], 700, rate_mib_s=60, hold_s=60)
            ending.callback(hog.stop)
            agent.wait_for_eviction(number)
            time.sleep(_QUIET_S / 2)
        return kept / "recorder" / node.path.name


def main() -> None:
    """Make all of it."""
    parser = argparse.ArgumentParser(prog="tests.browser.picture")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--recording", type=Path, help="show this one in place of a new one")
    parser.add_argument("--docs", type=Path, help="the picture of the documentation is put there")
    asked = parser.parse_args()
    folder: Path = asked.folder
    folder.mkdir(parents=True, exist_ok=True)
    recording = asked.recording
    if recording is None:
        kept = folder / "kept"
        shutil.rmtree(kept, ignore_errors=True)
        recording = record(kept)
    page = folder / "incident.html"
    subprocess.run([sys.executable, "-m", "koordebpf", "report", recording, "-o", page], cwd=_ROOT, check=True)
    with tempfile.TemporaryDirectory() as home, chromium(Path(home)) as browser:
        for name in ("light", "dark"):
            browser.emulate(dark=name == "dark")
            browser.open(page)
            browser.picture(folder / f"{name}.png", whole=True)
        (folder / "paper.pdf").write_bytes(browser.pdf())
        if asked.docs is not None:
            browser.emulate()
            browser.open(page)
            browser.run("document.querySelector('#memory').scrollIntoView({behavior: 'instant'})")
            browser.picture(asked.docs)


if __name__ == "__main__":
    main()
