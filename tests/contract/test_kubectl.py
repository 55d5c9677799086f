"""`kubectl koordebpf` against a server that answers as the API server does; also late, with errors, and nonsense."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from koordebpf.cli.kubectl import _group
from koordebpf.errors import ConfigError, KoordebpfError, KubeDenied, KubeError
from koordebpf.kube.remote.cluster import Cluster, open_kubeconfig
from koordebpf.kube.remote.exec import output_of, text_of
from koordebpf.state.outcome import Outcome, Result
from koordebpf.store.audit_record import OpenPlan
from koordebpf.tools.cluster.asking import Agents, fetch_recording
from tests.contract.remote_cluster import RemoteCluster, Said, agent_pod
from tests.support.patience import patience
from tests.support.values.builders import frame, plan_of, pod

AGENTS = "/api/v1/namespaces/koordebpf-system/pods"
METRICS = b"""\
# TYPE koordebpf_build_info gauge
koordebpf_build_info{version="0.1.0"} 1.0
koordebpf_dry_run 0.0
koordebpf_node_used_bytes 8.0e+08
koordebpf_node_capacity_bytes 1.0e+09
koordebpf_node_threshold_bytes{feature="BEMemoryEvict",mark="threshold"} 9.0e+08
koordebpf_node_psi_avg10_ratio{degree="some"} 0.125
koordebpf_node_forecast_seconds{bound="point",mark="threshold"} 42.0
koordebpf_evictions_total{executor="api",reason="BEMemoryEvict",result="done"} 3.0
koordebpf_evictions_total{executor="api",reason="BEMemoryEvict",result="refused"} 5.0
koordebpf_signals_info{backend="co-re",births="traced",scan="one pass",stalls="timed"} 1.0
"""
POD = {
    "metadata": {"name": "hog", "namespace": "spark", "uid": "u-2"},
    "spec": {"nodeName": "b"},
    "status": {"phase": "Running"},
}


def audit_line(node: str = "a") -> bytes:
    (victim,) = (plan := plan_of(frame([pod("hog", anon=300), pod("calm", anon=10)], used=900))).victims
    line = OpenPlan(plan, node=node, dry_run=False, seen_ns=1, decided_ns=2_501_000, wall_s=0.0)
    line.add_outcome(Outcome(victim.candidate.uid, "spark", "hog", "api", Result.DONE, "asked", 2_501_000))
    return msgspec.json.encode(line.record())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RemoteCluster]:
    made = RemoteCluster(tmp_path)
    made.pages["/api/v1/nodes"] = {"items": [{"metadata": {"name": name}} for name in "abc"]}
    made.pages[AGENTS] = {"items": [agent_pod("a"), agent_pod("b")]}
    for node in "ab":
        made.pages[f"{AGENTS}/koordebpf-agent-{node}:9320/proxy/metrics"] = METRICS
        made.pages[f"{AGENTS}/koordebpf-agent-{node}/log?container=agent"] = b""
        made.pages[f"{AGENTS}/koordebpf-agent-{node}/log?container=agent&previous=true"] = 400
    made.pages["/api/v1/namespaces/spark/events"] = {"items": []}
    yield made
    made.close()


@pytest.fixture
def opened(cluster: RemoteCluster) -> Iterator[Cluster]:
    made = open_kubeconfig(str(cluster.kubeconfig))
    yield made
    made.close()


def kubectl(cluster: RemoteCluster, *arguments: str) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error, as `main` makes them."""
    done = CliRunner().invoke(_group, [*arguments, "--kubeconfig", str(cluster.kubeconfig)])
    if isinstance(done.exception, KoordebpfError):
        return done.exception.exit_code, done.stdout, str(done.exception)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.stdout, done.stderr


class TestKubeconfig:
    def test_the_contexts_own_namespace(self, cluster: RemoteCluster) -> None:
        assert open_kubeconfig(str(cluster.kubeconfig)).namespace == "default"
        assert open_kubeconfig(str(cluster.kubeconfig), "nowhere").namespace == "far"

    def test_the_files_of_the_variable(
        self, cluster: RemoteCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/none:{cluster.kubeconfig}")
        assert open_kubeconfig().transport.url == cluster.url

    def test_that_of_the_home(self, cluster: RemoteCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("KUBECONFIG", raising=False)
        monkeypatch.setenv("HOME", str(tmp_path))
        with pytest.raises(ConfigError, match="no such file; name one, or set KUBECONFIG"):
            open_kubeconfig()
        (tmp_path / ".kube").mkdir()
        (tmp_path / ".kube/config").write_bytes(cluster.kubeconfig.read_bytes())
        assert open_kubeconfig().transport.url == cluster.url

    @pytest.mark.parametrize("text", ["", "[]", "{", "contexts: 3", "current-context: x"])
    def test_one_that_is_none(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "bad").write_text(text)
        with pytest.raises(ConfigError, match="must lead to an API server"):
            open_kubeconfig(str(tmp_path / "bad"))

    def test_a_context_that_is_not_there(self, cluster: RemoteCluster) -> None:
        with pytest.raises(ConfigError, match="must lead to an API server"):
            open_kubeconfig(str(cluster.kubeconfig), "nope")

    def test_a_server_that_is_not_there(self, cluster: RemoteCluster) -> None:
        code, _, error = kubectl(cluster, "status", "--context", "nowhere")
        assert (code, "no connection to http://127.0.0.1:9" in error) == (1, True)


class TestCommandsInPods:
    WHERE = ("koordebpf-system", "koordebpf-agent-a")

    def text(self, opened: Cluster, within_s: float = 5) -> tuple[bytes, int, str]:
        said, ended = text_of(opened, self.WHERE, "agent", ["koordebpf", "doctor"], within_s)
        return said, ended.exit_code, ended.stderr

    def test_output_of_every_size_comes_whole(self, cluster: RemoteCluster, opened: Cluster) -> None:
        parts = (b"a" * 125, b"b" * 126, b"c" * 70_000, b"", b"d")
        cluster.run = lambda pod, command: Said(parts, b"note\n")
        assert self.text(opened) == (b"".join(parts), 0, "note\n")

    def test_its_exit_code_is_known(self, cluster: RemoteCluster, opened: Cluster) -> None:
        cluster.run = lambda pod, command: Said((b"x",), b"first\nlast words\n", 2)
        assert self.text(opened) == (b"x", 2, "first\nlast words\n")
        with pytest.raises(KubeError, match="exit code 2: last words"):
            output_of(opened, self.WHERE, "agent", ["koordebpf", "doctor"], 5)

    def test_it_is_run_in_that_pod(self, cluster: RemoteCluster, opened: Cluster) -> None:
        seen: list[Any] = []

        def run(pod: str, command: list[str]) -> Said:
            seen.append((pod, command))
            return Said()

        cluster.run = run
        self.text(opened)
        assert seen == [("koordebpf-agent-a", ["koordebpf", "doctor"])]

    def test_a_refusal_names_the_right_that_is_missing(self, cluster: RemoteCluster, opened: Cluster) -> None:
        cluster.exec_status = 403
        with pytest.raises(KubeDenied, match=r"create pods/exec: 403 .*needs RBAC verb create on pods/exec"):
            self.text(opened)

    def test_a_recording_without_an_end_is_cut_before_it_fills_the_disk(
        self, cluster: RemoteCluster, opened: Cluster, tmp_path: Path
    ) -> None:
        sent: list[int] = []

        def endless() -> Iterator[bytes]:
            while len(sent) < 4096:
                sent.append(64 << 10)
                yield bytes(64 << 10)

        cluster.run = lambda pod, command: Said(endless())
        agents = Agents(opened, "koordebpf-system", within_s=20)
        with pytest.raises(KubeError, match=r"a: it sent more than 1\.0 MiB"):
            fetch_recording(agents, "a", tmp_path / "new", most_bytes=1 << 20)
        assert sum(sent) < 64 << 20  # the rest was on its way; all of it would be 256 MiB
        assert not (tmp_path / "new").exists()

    def test_a_message_is_not_held_that_is_larger_than_any_of_an_api_server(
        self, cluster: RemoteCluster, opened: Cluster
    ) -> None:
        cluster.run = lambda pod, command: Said((bytes(3 << 20),) * 3)
        assert len(self.text(opened)[0]) == 9 << 20
        cluster.run = lambda pod, command: Said((bytes(5 << 20),))
        with pytest.raises(KubeError, match="a message of more than 4 MiB"):
            self.text(opened)

    @pytest.mark.parametrize(
        ("said", "words"),
        [
            (Said((b"x",), cut=True), "connection"),
            (Said(wait_s=3), "did not end in time"),
            (Said(status=b"no json"), "no json"),
            (Said(status=b'{"status":"Failure","code":500,"message":"no such container"}'), "no such container"),
        ],
    )
    def test_what_goes_wrong_is_said(self, cluster: RemoteCluster, opened: Cluster, said: Said, words: str) -> None:
        cluster.run = lambda pod, command: said
        with pytest.raises(KubeError, match=words):
            self.text(opened, within_s=0.5)


class TestStatus:
    def test_every_node_has_a_line(self, cluster: RemoteCluster) -> None:
        code, out, _ = kubectl(cluster, "status")
        lines = out.splitlines()
        assert lines[0].split() == ["NODE", "AGENT", "READY", "MEMORY", "EVICTS", "ABOVE", "EVICTED", "PROBLEM"]
        assert lines[1].split("   ")[:3] == ["a", "   enforces", "yes"] or lines[1].split()[:3] == [
            "a",
            "enforces",
            "yes",
        ]
        assert "763MiB (80%)" in lines[1] and "858MiB (90%)" in lines[1]
        assert lines[3].split() == ["c", "none", "-", "-", "-", "-", "no", "agent"]
        assert code == 1

    def test_named_nodes_alone(self, cluster: RemoteCluster) -> None:
        code, out, _ = kubectl(cluster, "status", "a", "-o", "json")
        (state,) = json.loads(out)["nodes"]
        assert (code, state["node"], state["said"]["evicted"], state["said"]["stalls"]) == (0, "a", 3, "timed")
        assert kubectl(cluster, "status", "nope")[0] == 2

    def test_one_that_hangs_costs_its_own_row(self, cluster: RemoteCluster) -> None:
        over = threading.Event()

        def hang() -> bytes:
            over.wait(patience(30))
            return METRICS

        cluster.pages[f"{AGENTS}/koordebpf-agent-b:9320/proxy/metrics"] = hang
        began_s = time.monotonic()
        code, out, _ = kubectl(cluster, "status", "a", "b", "--request-timeout", "0.5")
        assert time.monotonic() - began_s < patience(10)
        over.set()
        a, b = out.splitlines()[1:]
        assert "763MiB" in a
        assert re.search("no (whole )?answer", b)  # what came of it by then
        assert code == 1

    @pytest.mark.parametrize("written", ["0", "30", "30s", "1m", "0.5m", "9999h"])
    def test_a_timeout_is_written_as_kubectl_has_it(self, cluster: RemoteCluster, written: str) -> None:
        code, out, _ = kubectl(cluster, "status", "a", "--request-timeout", written)
        assert (code, len(out.splitlines())) == (0, 2)

    @pytest.mark.parametrize("written", ["-1s", "soon", "1 m", "5d", "", "inf", "nan", "1e9"])
    def test_any_other_is_refused(self, cluster: RemoteCluster, written: str) -> None:
        code, _, err = kubectl(cluster, "status", "a", "--request-timeout", written)
        assert code == 2
        assert "is no duration: as 30s, 1m or 1h30m" in " ".join(err.split())

    @pytest.mark.parametrize(("page", "words"), [(403, "needs RBAC verb"), (b"\xff\x00{", "no page of metrics")])
    def test_one_that_answers_nonsense_is_named(self, cluster: RemoteCluster, page: Any, words: str) -> None:
        cluster.pages[f"{AGENTS}/koordebpf-agent-b:9320/proxy/metrics"] = page
        assert words in kubectl(cluster, "status", "b")[1]

    def test_closed_guards_are_the_problem(self, cluster: RemoteCluster) -> None:
        closed = METRICS + b'koordebpf_guard_closed{reason="pods_stale"} 1.0\n'
        cluster.pages[f"{AGENTS}/koordebpf-agent-a:9320/proxy/metrics"] = closed
        assert "guards closed: pods_stale" in kubectl(cluster, "status", "a")[1]

    def test_during_an_update_the_agent_that_is_ready_counts(self, cluster: RemoteCluster) -> None:
        newer = agent_pod("a", ready=False)
        newer["metadata"] |= {"name": "newer", "creationTimestamp": "2026-02-01T00:00:00Z"}
        cluster.pages[AGENTS] = {"items": [newer, agent_pod("a")]}
        assert kubectl(cluster, "status", "a")[0] == 0

    def test_hooks_around_evictions_have_a_column_where_any_is_set(self, cluster: RemoteCluster) -> None:
        hooks = METRICS + b"".join(
            b'koordebpf_eviction_hook_calls_total{hook="%s",outcome="%s"} %d\n' % (hook, outcome, number)
            for hook, outcome, number in (
                (b"page-me", b"done", 4),
                (b"page-me", b"failed", 0),
                (b"chat", b"done", 2),
                (b"chat", b"timed_out", 1),
                (b"chat", b"dropped", 7),
                (b"quiet", b"done", 0),
            )
        )
        hooks += b'koordebpf_eviction_hook_seconds_total{hook="page-me"} 0.05\n'
        hooks += b'koordebpf_eviction_hook_seconds_total{hook="chat"} 15.0\n'
        hooks += b'koordebpf_eviction_hook_seconds_total{hook="quiet"} 0.0\n'
        cluster.pages[f"{AGENTS}/koordebpf-agent-a:9320/proxy/metrics"] = hooks
        code, out, _ = kubectl(cluster, "status", "a", "b")
        heading, a, b = out.splitlines()
        assert "EVICTED" in heading and heading.index("HOOKS") == a.index("page-me")
        assert "page-me 4 done (mean 12.5 ms); chat 2 done, 1 timed out, 7 dropped (mean 5 s); quiet not called" in a
        assert "page-me" not in b
        assert code == 0, "a hook that fails keeps no agent from its work"
        (state,) = json.loads(kubectl(cluster, "status", "a", "-o", "json")[1])["nodes"]
        assert state["said"]["hooks"][1] == {
            "name": "chat",
            "calls": {"done": 2, "timed_out": 1, "dropped": 7},
            "mean_s": 5.0,
        }

    def test_wide_and_yaml(self, cluster: RemoteCluster) -> None:
        assert "co-re, stalls timed" in kubectl(cluster, "status", "a", "-o", "wide")[1]
        assert "schema: koordebpf.status/v1\n" in kubectl(cluster, "status", "a", "-o", "yaml")[1]

    def test_a_name_that_a_terminal_would_obey_is_shown(self, cluster: RemoteCluster) -> None:
        cluster.pages["/api/v1/nodes"] = {"items": [{"metadata": {"name": "\x1b[2J\nx"}}]}
        assert "\\x1b[2J\\x0ax" in kubectl(cluster, "status")[1]

    def test_top_nodes_has_who_is_nearest_first(self, cluster: RemoteCluster) -> None:
        near = METRICS.replace(b"8.0e+08", b"8.9e+08")
        cluster.pages[f"{AGENTS}/koordebpf-agent-b:9320/proxy/metrics"] = near
        code, out, _ = kubectl(cluster, "top", "nodes")
        assert [line.split()[0] for line in out.splitlines()] == ["NODE", "b", "a", "c"]
        assert out.splitlines()[1].split()[3:] == ["89%", "90%", "12.5", "-", "42s"]
        assert code == 0


class TestWhy:
    def test_who_is_gone_and_of_whom_nothing_is_known_is_asked_of_all(self, cluster: RemoteCluster) -> None:
        cluster.run = lambda pod, command: Said((audit_line() + b"\n",) if pod.endswith("-a") else ())
        code, out, _ = kubectl(cluster, "why", "spark/hog")
        assert code == 0
        assert out.startswith("pod spark/hog: gone\n\ndecided on a, says its agent:\n1970-01-01T00:00:00.000Z a\n")
        assert "evicting spark/hog (priority 5000, 300 MiB)" in out

    def test_events_say_which_node_it_was(self, cluster: RemoteCluster) -> None:
        event = {
            "metadata": {"name": "hog.1"},
            "type": "Warning",
            "reason": "evictPodSuccess",
            "message": "evict Pod:spark/hog",
            "source": {"component": "koordebpf", "host": "b"},
            "lastTimestamp": "2026-01-01T00:00:00Z",
        }
        cluster.pages["/api/v1/namespaces/spark/events"] = {"items": [event]}
        code, out, _ = kubectl(cluster, "why", "hog", "-n", "spark", "-o", "json")
        why = json.loads(out)
        assert (code, why["asked"], why["now"], why["decisions"]) == (1, ["b"], None, [])
        assert not [path for path in cluster.asked if "agent-a/exec" in path]
        assert "2026-01-01T00:00:00Z koordebpf evictPodSuccess: evict" in kubectl(cluster, "why", "spark/hog")[1]

    def test_the_log_is_read_where_no_command_may_run(self, cluster: RemoteCluster) -> None:
        cluster.exec_status = 403
        cluster.pages["/api/v1/namespaces/spark/pods/hog"] = POD
        log = b'{"message":"started"}\n' + audit_line("b") + b"\nnot json\n"
        cluster.pages[f"{AGENTS}/koordebpf-agent-b/log?container=agent&previous=true"] = log
        code, out, _ = kubectl(cluster, "why", "pod/hog", "-n", "spark")
        assert code == 0
        assert out.startswith("pod spark/hog: running, on b\n\ndecided on b, says its agent's log:\n")

    def test_an_agent_that_answers_nothing_is_named(self, cluster: RemoteCluster) -> None:
        cluster.exec_status = 403
        cluster.pages[f"{AGENTS}/koordebpf-agent-b/log?container=agent"] = 403
        code, out, error = kubectl(cluster, "why", "spark/hog")
        assert code == 1
        assert "no decision of an agent on any node speaks of it" in out.replace("\n  ", " ")
        assert "b: create pods/exec: 403" in error and "get pods/log: 403" in error
        assert "a: " not in error

    def test_recordings_are_looked_into_when_it_is_asked_for(self, cluster: RemoteCluster) -> None:
        def run(pod: str, command: list[str]) -> Said:
            return Said((audit_line("b") + b"\n",) if command[-1].startswith("/var/lib") else ())

        cluster.run = run
        assert kubectl(cluster, "why", "spark/hog")[0] == 1
        code, out, _ = kubectl(cluster, "why", "spark/hog", "--recorded")
        assert (code, "says its agent's recording" in out) == (0, True)

    @pytest.mark.parametrize("name", ["", "a/b/c"])
    def test_a_name_that_is_none(self, cluster: RemoteCluster, name: str) -> None:
        assert kubectl(cluster, "why", name)[0] == 2

    def test_of_pods_of_the_same_name_elsewhere_nothing_is_said(self, cluster: RemoteCluster) -> None:
        cluster.run = lambda pod, command: Said((audit_line() + b"\n",))
        cluster.pages["/api/v1/namespaces/other/events"] = {"items": []}
        assert kubectl(cluster, "why", "other/hog")[0] == 1


class TestDoctor:
    REPORT = b'{"exit_code":1,"quality":"q","sources":[{"signal":"oom","works":false,"reason":"no kprobe"}]}'

    def test_nodes_with_the_same_findings_stand_together(self, cluster: RemoteCluster) -> None:
        cluster.run = lambda pod, command: Said((self.REPORT,), code=1)
        code, out, _ = kubectl(cluster, "doctor", "--all")
        assert (code, out) == (1, "2 nodes: works with losses: a, b\n  -- oom: no kprobe\n")

    def test_one_that_says_nothing_is_named(self, cluster: RemoteCluster) -> None:
        cluster.run = lambda pod, command: Said((self.REPORT,)) if pod.endswith("a") else Said((), b"killed\n", 137)
        code, out, _ = kubectl(cluster, "doctor", "--all")
        assert (code, out.splitlines()[-1]) == (1, "not known: b: doctor: exit code 137: killed")

    def test_of_one_node_it_is_passed_on(self, cluster: RemoteCluster) -> None:
        cluster.run = lambda pod, command: Said((" ".join(command).encode() + b"\x1b[2J\n",), b"", 2)
        code, out, _ = kubectl(cluster, "doctor", "a", "--fix")
        assert (code, out) == (2, "koordebpf doctor --fix\\x1b[2J\n")
        assert kubectl(cluster, "doctor")[0] == 2
        assert kubectl(cluster, "explain", "c")[0] == 2


class TestTopPods:
    def test_of_nodes_with_such_pods_only(self, cluster: RemoteCluster) -> None:
        row = {"name": "spark/hog", "qos": "BE", "priority": 5, "cgroup_id": 1, "used_bytes": 300 << 20}
        row |= dict.fromkeys(("usage_bytes", "file_bytes", "limit_bytes", "growth_bytes_per_s", "shares", "full_in"))
        row |= {"global_stall_ns": 0, "limit_stall_ns": 0}
        quality = {"backend": "co-re", "stalls": "timed", "births": "traced", "scan": "one pass", "sentence": ""}
        page = {
            "schema": "koordebpf.top/v1", "time": "", "level": "pod", "sort": "usage", "capacity_bytes": 1,
            "threshold_bytes": None, "node": {"scope": "machine", "total_bytes": 1, "used_bytes": 1},
            "forecast": None, "quality": quality, "rows": [row, row | {"name": "spark/calm"}], "ledger": None,
        }  # fmt: skip
        cluster.run = lambda pod, command: Said((json.dumps(page).encode(),))
        cluster.pages["/api/v1/namespaces/spark/pods?labelSelector=app%3Dx&limit=500"] = {"items": [POD]}
        code, out, error = kubectl(cluster, "top", "pods", "-n", "spark", "-l", "app=x")
        assert (code, error) == (0, "")
        assert [line.split()[:3] for line in out.splitlines()[1:]] == [["hog", "BE", "300MiB"]]
        assert not [path for path in cluster.asked if "agent-a/exec" in path]

    def test_an_agent_without_a_round_or_of_another_version(self, cluster: RemoteCluster) -> None:
        cluster.run = lambda pod, command: Said((b"null" if pod.endswith("a") else b"{}",))
        code, _, error = kubectl(cluster, "top", "pods", "-A")
        assert code == 1
        assert "a: it has not measured its node yet" in error and "b: its answer is no page of top" in error
