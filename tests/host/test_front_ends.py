"""`doctor` and `top` as a user calls them, on the running kernel."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from koordebpf.kernel.cgroupfs import find_memory_hierarchy
from tests.nodes import MIB, NodeCgroup

pytestmark = pytest.mark.usefixtures("require_root")


def koordebpf(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "koordebpf", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "80"},
    )


def test_doctor_says_how_each_signal_is_had_here() -> None:
    done = koordebpf("doctor", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    by_name = {source["signal"]: source for source in report["sources"]}
    assert by_name["memory controller"]["works"]
    assert by_name["cgroup births and deaths"]["how"] == "raw tracepoint cgroup_mkdir"
    for source in report["sources"]:
        assert source["works"] or (source["reason"] and source["remedy"] and source["cost"]), source
    text = koordebpf("doctor")
    assert max(map(len, text.stdout.splitlines())) <= 80
    assert text.stdout.count("\n-- ") == sum(not source["works"] for source in report["sources"])


def test_doctor_names_the_rule_of_a_bad_node_cgroup() -> None:
    done = koordebpf("doctor", "--node-cgroup", "no/such/cgroup")
    assert done.returncode == 2
    assert done.stderr.startswith("koordebpf: --node-cgroup: 'no/such/cgroup': must name a cgroup below ")
    assert "Traceback" not in done.stderr


@pytest.fixture
def node(tmp_path: Path) -> Any:
    hierarchy = find_memory_hierarchy()
    with NodeCgroup(hierarchy.mount_point, hierarchy.version, 512 * MIB) as made:
        yield made


def test_top_shows_what_a_pod_holds(node: NodeCgroup, tmp_path: Path) -> None:
    (container,) = node.add_pod("hog")
    node.add_pod("idle", be=False)
    manifest = node.write_manifest(tmp_path / "pods.json", 80, 75)
    node.add_pod("unlisted")
    # One MiB more than is looked for: each CPU holds back some pages on their way to the LRU.
    worker = [sys.executable, "-m", "koordebpf.demo.workers", "hog", "--procs", str(container / "cgroup.procs")]
    with subprocess.Popen([*worker, "--mib", "65", "--mib-per-s", "1000"], stdout=subprocess.PIPE, text=True) as hog:
        try:
            assert hog.stdout is not None
            while json.loads(hog.stdout.readline())["event"] != "full":
                pass
            done = koordebpf("top", "--once", "--json", "--pods", str(manifest), "--node-cgroup", str(node.path))
            frame = koordebpf("top", "--frame", "--pods", str(manifest), "--node-cgroup", str(node.path))
            page = koordebpf("top", "--once", "--pods", str(manifest), "--node-cgroup", str(node.path))
        finally:
            hog.kill()
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    rows = {row["pod"]: row for row in shown["pods"]}
    assert 64 * MIB <= rows["default/hog"]["used_bytes"] < 100 * MIB
    assert rows["default/idle"]["used_bytes"] == 0
    stray = next(name for name in rows if name.startswith("? pod"))
    assert rows[stray]["used_bytes"] == 0
    assert shown["node"]["total_bytes"] == 512 * MIB
    assert shown["node"]["used_bytes"] >= 64 * MIB
    assert "default/hog" in page.stdout
    (tmp_path / "frame.json").write_text(frame.stdout)
    plan = koordebpf("plan", str(tmp_path / "frame.json"), "--json")
    assert json.loads(plan.stdout)["features"][0]["verdict"]["evidence"]["capacity_bytes"] == 512 * MIB
    assert "threshold 410 MiB" in page.stdout
    assert max(map(len, page.stdout.splitlines())) <= 80
