"""What `koordebpf metrics` asks an agent or a snapshot, and shows."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial

import pytest
from click.testing import CliRunner

from koordebpf.cli.metrics import metrics
from koordebpf.errors import ConfigError
from koordebpf.jobs.usage_series.snapshot import SnapshotWriter
from koordebpf.report.http.local_socket import LocalSocket
from koordebpf.report.http.routes import DecisionServer
from koordebpf.report.series import selector_of, selector_text, series_answer
from koordebpf.state.series.kinds import NODE_CPU, POD_CPU, POD_MEMORY, POD_PSI
from koordebpf.state.series.store import SeriesStore
from koordebpf.units import GIB, NS_PER_S

HOSTILE = 'a"\\\x1b]0;pwn\x07'


@pytest.fixture
def store() -> SeriesStore:
    """Return one with a minute until now of two pods and the node."""
    store, now_ns = SeriesStore(), time.monotonic_ns()
    for second in range(60, 0, -1):
        values = {(NODE_CPU,): float(second), (POD_CPU, "uid-1"): 0.5, (POD_MEMORY, "uid-1"): 2.0 * GIB}
        store.append_round(now_ns - second * NS_PER_S, {**values, (POD_MEMORY, HOSTILE): 4096.0})
    store.append_round(now_ns - 50, {(POD_PSI, "uid-1", "mem", "10", "some"): 1})
    return store


@pytest.fixture
def agent(store, tmp_path) -> Iterator[str]:
    """Return the socket of a server as the agent has it."""
    local = LocalSocket(tmp_path / "machine", acts=True)
    server = DecisionServer(local, tuple, tuple, pages={"/series": partial(series_answer, store)})
    yield str(local.path)
    server.close()


def asked(*options: str, agent: str) -> str:
    done = CliRunner().invoke(metrics, [*options, "--url", agent], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_every_aggregation_of_a_window(agent):
    assert asked("node_cpu_usage", "--window", "30s", agent=agent).splitlines() == [
        "node_cpu_usage of the last 30 s",
        "series          count     avg     p50     p90     p95     p99   last",
        "node_cpu_usage     29  15.000  14.000  26.000  27.000  28.000  1.000",
    ]


def test_one_aggregation_of_one_series_with_the_unit_of_its_kind(agent):
    text = asked('pod_memory_usage{pod_uid="uid-1"}', "--agg", "p95", agent=agent)
    assert text.splitlines()[1:] == ["series               p95", 'pod_uid="uid-1"  2.0 GiB']


def test_the_same_as_json(agent):
    lines = [json.loads(line) for line in asked("pod_memory_usage", "--json", agent=agent).splitlines()]
    assert [each["properties"] for each in lines] == [{"pod_uid": "uid-1"}, {"pod_uid": HOSTILE}]
    assert lines[0]["values"] == {
        "count": 60, "span_ns": 59 * NS_PER_S, "avg": 2.0 * GIB, "last": 2.0 * GIB,
        **dict.fromkeys(("p50", "p90", "p95", "p99"), 2.0 * GIB),
    }  # fmt: skip
    (line,) = asked("node_cpu_usage", "--json", "--agg", "last", agent=agent).splitlines()
    assert json.loads(line) == {
        "schema": "koordebpf.metrics/v1",
        "kind": "node_cpu_usage",
        "properties": {},
        "values": {"last": 1.0},
    }


def test_which_kinds_there_are(agent):
    assert asked(agent=agent).splitlines() == [
        "kind              series  properties",
        "node_cpu_usage         1",
        "pod_cpu_usage          1  pod_uid",
        "pod_memory_usage       2  pod_uid",
        "pod_psi                1  pod_uid psi_resource psi_precision psi_degree",
    ]
    kind = json.loads(asked("--json", agent=agent).splitlines()[2])
    assert kind == {"schema": "koordebpf.metrics-kind/v1", "kind": "pod_memory_usage", "series": 2}


def test_a_series_without_a_sample_in_the_window_has_a_dash(agent):
    assert asked("pod_cpu_usage", "--window", "1ms", "--agg", "avg", agent=agent).splitlines()[2].split() == [
        'pod_uid="uid-1"', "-"
    ]  # fmt: skip
    assert "no series of pod_cpu_usage has these properties" in asked('pod_cpu_usage{pod_uid="x"}', agent=agent)


def test_a_name_that_a_tenant_chose_only_shows(agent):
    text = asked("pod_memory_usage", agent=agent)
    assert "\x1b" not in text
    assert "pwn" in text


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("pod_cpu_usag", "QUERY: 'pod_cpu_usag': must be a kind of series, such as pod_cpu_usage"),
        ('pod_cpu_usage{pod_id="a"}', "QUERY: 'pod_id': must be a property of pod_cpu_usage, such as pod_uid"),
        ('node_cpu_usage{pod_uid="a"}', "QUERY: 'pod_uid': is too much: node_cpu_usage has none"),
        ("pod_cpu_usage{pod_uid=a}", "must be a kind, and properties in braces"),
        ('pod_cpu_usage{pod_uid="a"', "must be a kind, and properties in braces"),
        ("", "must be a kind, and properties in braces"),
        ("rate(pod_cpu_usage[5m])", "must be a kind, and properties in braces"),
    ],
)
def test_a_wrong_query_is_named_with_what_is_near(agent, query, sentence):
    with pytest.raises(ConfigError) as raised:
        asked(query, agent=agent)
    assert sentence in str(raised.value)


@pytest.mark.parametrize("window", ["0s", "5", "-1s", "5 minutes"])
def test_a_wrong_window_is_named(agent, window):
    with pytest.raises(ConfigError, match=f"--window: '{window}': must be"):
        asked("node_cpu_usage", "--window", window, agent=agent)


def test_a_snapshot_is_read_as_of_the_moment_when_it_was_written(store, tmp_path):
    path = tmp_path / "series.snapshot"
    SnapshotWriter(path, store).write(time.monotonic_ns())
    text = CliRunner().invoke(metrics, ["node_cpu_usage", "--snapshot", str(path), "--agg", "count"]).output
    assert text.splitlines()[2].split() == ["node_cpu_usage", "60"]
    path.write_bytes(b"something else")
    done = CliRunner().invoke(metrics, ["--snapshot", str(path)])
    assert isinstance(done.exception, ConfigError)
    assert "must be a snapshot of series" in str(done.exception)


def test_what_is_said_while_the_loop_appends_is_a_window_of_whole_rounds():
    # GIVEN a loop that appends the same value to each series of a round, thousands of them in a second
    store, stops = SeriesStore(), threading.Event()
    keys = [(POD_CPU, str(pod)) for pod in range(20)]

    def append() -> None:
        number = 0
        while not stops.is_set():
            number += 1
            store.append_round(time.monotonic_ns(), dict.fromkeys(keys, number))
            time.sleep(0.0001)  # else a reader on a busy machine is never let in while its window is full

    loop, interval_s = threading.Thread(target=append), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # between any two steps of the interpreter
    loop.start()
    try:
        # THEN what another thread reads of it has no gap
        began_s, answers = time.monotonic(), 0
        # For a second, and on a busy machine for as long as it takes that a read falls between two rounds.
        while (passed_s := time.monotonic() - began_s) < 1 or (not answers and passed_s < 10):
            for row in series_answer(store, "query=pod_cpu_usage&window_ns=50000000").rows:
                if row.values is not None:
                    answers += 1
                    assert row.values.avg == pytest.approx(row.values.latest - (row.values.count - 1) / 2, rel=1e-3)
    finally:
        stops.set()
        loop.join()
        sys.setswitchinterval(interval_s)
    assert answers > 0


def test_a_selector_is_what_is_made_of_its_text():
    for value in ("uid", "", HOSTILE, "a,b", 'x="y"', "{}"):
        if "\n" not in value:
            found = selector_of(selector_text(POD_CPU, [("pod_uid", value)]))
            assert (found.kind, found.properties) == (POD_CPU, {"pod_uid": value})
    assert selector_of(' pod_psi { psi_resource = "mem" , psi_degree="some", } ').properties == {
        "psi_resource": "mem", "psi_degree": "some"
    }  # fmt: skip
