"""`python -m tests.browser.picture FOLDER`: record a real shortage on this kernel, show its page in Chromium (root).

A cgroup of 1 GiB is the node. Best-effort pods fill its page cache, burn CPU and grow beside latency-sensitive ones,
which have to wait for memory; an agent with its recorder suppresses and evicts them. What it recorded becomes
incident.html, light.png, dark.png, paper.pdf and the pictures of the docs.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from koordebpf.kernel.cgroup.hierarchy import find_memory_hierarchy
from tests.browser.chromium import chromium
from tests.host.rigs.colocated_node import ColocatedNode
from tests.support.agent_process import AgentProcess

_ROOT = Path(__file__).parents[2]
_QUIET_S, _TURN_S = 10.0, 8.0


def record(kept: Path) -> Path:
    """Let an agent evict on a node of this kernel twice; return what its recorder wrote, below `kept`.

    Raises:  RuntimeError: nothing was evicted.
    """
    with tempfile.TemporaryDirectory() as name, ColocatedNode(find_memory_hierarchy(), Path(name)) as busy:
        manifest, audit = busy.manifest(Path(name)), Path(name) / "audit.jsonl"
        with AgentProcess(busy.node, manifest, "--recorder-folder", str(kept), audit=audit) as agent:
            busy.starts()
            time.sleep(_QUIET_S)
            for number, growing in enumerate(("batch-join", "crawler")):
                busy.works(True)
                first = busy.takes(_TURN_S)
                time.sleep(_TURN_S)
                busy.surges(growing)
                agent.wait_for_eviction(number)
                busy.works(False)
                first.stop()
                time.sleep(_TURN_S)
        return kept / "recorder" / busy.node.path.name


def main() -> None:
    """Make all of it."""
    parser = argparse.ArgumentParser(prog="tests.browser.picture")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--recording", type=Path, help="show this one in place of a new one")
    parser.add_argument("--docs", type=Path, help="the pictures of the documentation are put into this folder")
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
    with chromium() as browser:
        for name in ("light", "dark"):
            browser.emulate(dark=name == "dark")
            browser.open(page)
            browser.picture(folder / f"{name}.png", whole=True)
        (folder / "paper.pdf").write_bytes(browser.pdf())
        if asked.docs is not None:
            browser.emulate()
            browser.open(page)
            for part, name in (("#memory", "incident.png"), ("#suppression", "stalls.png")):
                browser.run("document.querySelector(arguments[0]).scrollIntoView({behavior: 'instant'})", part)
                browser.picture(asked.docs / name)


if __name__ == "__main__":
    main()
