"""`koordebpf doctor` on Katalyst's eviction manager, on this host."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from koordebpf.cli.doctor import doctor as command
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.strategies.katalyst.inner import INNER
from tests.contract.eviction_plugin import Plugin

NUMA_NODES = len(list(Path("/sys/devices/system/node").glob("node[0-9]*")))


def doctor(*arguments: object) -> str:
    return CliRunner().invoke(command, ["--backend", "files", *map(str, arguments)], catch_exceptions=False).stdout


def config(folder: Path, gate: str = "true", katalyst: str = "{}") -> Path:
    path = folder / "config.yaml"
    path.write_text(
        "apiVersion: koordebpf.io/v1alpha1\nkind: AgentConfiguration\n"
        f"featureGates: {{KatalystEviction: {gate}}}\neviction: {{katalyst: {katalyst}}}\n"
    )
    return path


def found(*arguments: object) -> dict[str, dict[str, Any]]:
    return {each["signal"]: each for each in json.loads(doctor("--json", *arguments))["katalyst"]}


def test_every_plugin_has_a_line_and_what_it_lacks_is_said(tmp_path: Path, hierarchy: MemoryHierarchy) -> None:
    lines = found("--config", config(tmp_path))
    assert {f"{name}-eviction-plugin" for name in lines} >= {plugin.name for plugin in INNER.values()}
    assert lines["system-memory-pressure"]["works"]
    assert ("PSI" in lines["system-memory-pressure"]["reason"]) is (hierarchy.version == 1) or hierarchy.version == 2
    numa = lines["numa-memory-pressure"]["how"]
    assert ("one NUMA node" in numa) is (NUMA_NODES == 1)
    assert lines["rss-overuse"]["how"] == "off: inner.rssOveruse.isOn"
    assert lines["CustomNodeResource"]["reason"] == "no files are given"
    lacking = lines["reclaimed-resource-pressure"]
    assert not lacking["works"]
    assert "CustomNodeResource" in lacking["reason"] and lacking["remedy"] and lacking["cost"]
    assert "knows no API server" in lines["taints of conditions"]["reason"]


def test_what_is_switched_off_is_not_missing(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    settings = f"{{plugins: [], taints: false, sockets: '', notices: {blocked}}}"
    lines = found("--config", config(tmp_path, katalyst=settings))
    assert lines["numa-memory-pressure"]["how"].startswith("off: eviction.katalyst.plugins")
    assert lines["plugins outside"]["how"] == "off: eviction.katalyst.sockets"
    assert lines["taints of conditions"]["how"] == "off: eviction.katalyst.taints"
    assert "cannot be written" in lines["notices of soft evictions"]["reason"]


def test_without_the_gate_there_is_no_such_table(tmp_path: Path) -> None:
    assert found("--config", config(tmp_path, gate="false")) == found() == {}
    assert "KATALYST" not in doctor()
    with_it = doctor("--config", config(tmp_path))
    assert "   KATALYST" in with_it
    assert max(map(len, with_it.splitlines())) <= 80


def test_plugins_outside_are_named_with_what_is_wrong_with_them(tmp_path: Path) -> None:
    folder = tmp_path / "sockets"
    folder.mkdir()
    good, hung, other = (Plugin(folder / f"{name}.sock") for name in ("good", "hung", "other"))
    other.info["type"] = "CSIPlugin"
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(folder / "dead.sock"))
    hung.hold.clear()
    try:
        lines = found("--config", config(tmp_path, katalyst=f"{{sockets: {folder}}}"))
        assert lines["plugins outside"]["how"] == f"4 sockets in {folder}"
        assert (lines["good"]["works"], lines["good"]["how"]) == (True, "answers by good.sock")
        assert "DEADLINE_EXCEEDED" in lines["hung.sock"]["reason"]  # the server may have noticed first
        assert "its type 'CSIPlugin'" in lines["other.sock"]["reason"]
        assert "dead.sock" in lines and not lines["dead.sock"]["works"]
        assert good.statuses == []  # nothing is registered by it
    finally:
        dead.close()
        for each in (good, hung, other):
            each.stop()


ODD = {
    "a bad quantity": {"spec": {"containers": [{"name": "c", "resources": {"limits": {"cpu": "one"}}}]}},
    "nulls": {"spec": {"nodeName": None, "priorityClassName": None, "containers": None}, "status": None},
    "wrong types": {"spec": {"containers": {"name": "c"}, "priority": "high"}},
    "no UID": {"metadata": {"name": "odd", "namespace": "team"}},
}


def test_odd_pods_hide_nothing_of_what_stands_beside_them(tmp_path: Path) -> None:
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "team", "uid": name}, **odd}
        for name, odd in ODD.items()
    ]
    cnr = {"apiVersion": "node.katalyst.kubewharf.io/v1alpha1", "kind": "CustomNodeResource", "metadata": {"name": "n"}}
    (tmp_path / "pods.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [*pods, cnr]}))
    path = config(tmp_path)
    path.write_text(f"{path.read_text()}source: {{type: file, files: [{tmp_path / 'pods.json'}]}}\n")
    line = found("--config", path)["CustomNodeResource"]
    assert (line["works"], line["how"]) == (True, "of the files with pods")
