"""Shadow mode in the agent: its section of the configuration, its sink, its metrics, and that it is off by default."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

from koordebpf.agent.sinks import open_shadow
from koordebpf.collect.node_watch import SignalState
from koordebpf.collect.scope import NodeScope
from koordebpf.configuration.checked import agent_config, check_config
from koordebpf.configuration.settings import AgentConfig
from koordebpf.configuration.variant import shadow_variants
from koordebpf.errors import ConfigError
from koordebpf.events.records import OomKill
from koordebpf.jobs.shadow import ShadowSink
from koordebpf.kernel.cgroup.hierarchy import MemoryHierarchy
from koordebpf.report.prom.shadow import ShadowMetrics
from koordebpf.state.view import PendingRelease
from koordebpf.store.shadow import read_week
from koordebpf.store.sink import AgentStopped, MemoryReleased, OomKilled, RoundEnded
from koordebpf.units import NS_PER_S
from tests.support.values.builders import NOW_NS
from tests.support.values.played_node import Job, Played, play
from tests.support.values.rounds import _QUALITY

ROOT = Path(__file__).parents[3]
HEAD = "apiVersion: koordebpf.io/v1alpha1\nkind: AgentConfiguration\n"
SHADOW = """
shadow:
  kubeletHard: 50Mi
  folder: {folder}
  configurations:
    - name: enforced
    - name: eager
      settings:
        memoryEvictThresholdPercent: 60
        resourceUsedThresholdWithBE.memoryEvictLowerPercent: 50
        eviction.coolTime: 2s
        featureGates.MemoryEvict: true
"""
HOG = [Job("hog", 5, 400, 600, 20), Job("calm", 0, 400, 100, 100)]
SCOPE = NodeScope("machine", MemoryHierarchy(2, Path("/sys/fs/cgroup"), 0), Path("/sys/fs/cgroup"), 1)


class SetClock:
    def now_ns(self) -> int:
        return NOW_NS

    def wall_s(self) -> float:
        return 1_772_323_200.0 + 3600  # 2026-03-01

    def suspended_ns(self) -> int:
        return 0


def config(folder: object = "null", text: str = SHADOW) -> AgentConfig:
    return agent_config(check_config("agent.yaml", (HEAD + text.replace("{folder}", str(folder))).encode()))


def ended(each: Played) -> RoundEnded:
    return RoundEnded(each.tick, each.view, each.decision, SignalState(_QUALITY))


def opened(folder: object = "null") -> ShadowSink:
    sink = open_shadow(config(folder), SCOPE, "node-1")
    assert sink is not None
    return sink


def test_it_is_off_by_default_and_loads_nothing():
    assert open_shadow(AgentConfig(), SCOPE, "node-1") is None
    code = "import sys, koordebpf.agent.run; print([n for n in sys.modules if 'what_if.' in n or 'shadow.sink' in n])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_configuration_names_settings_as_the_files_do():
    found = config()
    assert found.shadow.kubelet_hard_bytes == 50 << 20 and found.shadow.folder is None
    enforced, eager = shadow_variants(found.shadow)
    tick = next(play(HOG, 1)).tick
    changed = eager.applied(tick)
    assert changed.frame.strategyInForce.memoryEvictThresholdPercent == 60
    assert changed.settings.eviction.cool_time_ns == 2 * NS_PER_S
    assert changed.frame.featureGates["MemoryEvict"] is True
    assert enforced.applied(tick).settings == tick.settings


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("memoryEvictTresholdPercent: 60", "did you mean memoryEvictThresholdPercent"),
        ("memoryEvictThresholdPercent: much", "shadow.configurations.odd"),
        ("eviction.coolTime: soon", "must be a duration"),
        ("eviction.coolTim: 2s", "no such field"),
        ("featureGates.Evict: true", "no such field"),
        ("node.cgroup: x", "must be a field of"),
    ],
)
def test_a_setting_that_is_none_is_named_at_the_start(settings, said):
    text = f"shadow:\n  configurations:\n    - name: odd\n      settings:\n        {settings}\n"
    with pytest.raises(ConfigError, match=said):
        config(text=text)


@pytest.mark.parametrize(
    "configurations",
    [
        "[{name: a}, {name: a}]",
        "[{name: A}]",
        "[{name: ''}]",
        "[{}]",
        "[{name: a}, {name: b}, {name: c}, {name: d}, {name: e}]",
    ],
)
def test_names_are_four_different_small_words(configurations):
    with pytest.raises(ConfigError):
        config(text=f"shadow:\n  configurations: {configurations}\n")


def test_a_week_is_kept_each_minute_and_at_the_end(tmp_path):
    sink = opened(tmp_path)
    sink._clock = SetClock()
    for each in play(HOG, 200, enforce=False):
        sink.publish(ended(each))
    sink.publish(AgentStopped(NOW_NS + 200 * NS_PER_S))
    week = read_week(tmp_path / "shadow" / "machine.json")
    assert [each.day for each in week.days] == ["2026-03-01"]
    assert week.settings["enforced"] == {} and week.settings["eager"]["eviction.coolTime"] == "2s"
    assert week.node_total().rounds == 200
    assert week.total("enforced").evictions == week.total("eager").evictions == 1
    assert week.total("eager").over_kubelet.mean_s > week.total("enforced").over_kubelet.mean_s > 0
    again = opened(tmp_path)
    again._clock = SetClock()
    again.publish(ended(next(play(HOG, 1))))
    again.publish(AgentStopped(NOW_NS))
    assert read_week(tmp_path / "shadow" / "machine.json").node_total().rounds == 201


@pytest.mark.parametrize(("is_global", "limit", "counts"), [(True, 0, 1), (False, 7, 1), (False, 8, 0)])
def test_oom_kills_of_the_node_count_and_those_of_a_pods_own_limit_do_not(is_global, limit, counts):
    sink = opened()
    sink._node_cgroup_id = 7
    record = OomKill(NOW_NS, 9, limit, 10, 9, 0, 0, 42, is_global, "hog")
    sink.publish(OomKilled(record, None, NOW_NS))
    sink.publish(ended(next(play(HOG, 1))))
    assert sink.total().node.oom_kills == counts


def test_what_a_release_takes_is_the_median_of_the_last_ones():
    sink = opened()
    for seconds in (1, 20, 30):
        entry = PendingRelease(uid="a", since_ns=NOW_NS, credit_bytes=1)
        sink.publish(MemoryReleased(entry, NOW_NS + seconds * NS_PER_S))
    for each in play(HOG, 60, enforce=False):
        sink.publish(ended(each))
    assert sink.total().shadows["enforced"].above_s == pytest.approx(20.0, abs=1.5)


def test_metrics_have_each_configuration_from_the_start():
    sink = opened()
    registry = CollectorRegistry(auto_describe=False)

    class Collected:
        def collect(self):
            return ShadowMetrics(sink).families()

    registry.register(Collected())
    before = generate_latest(registry).decode()
    assert 'koordebpf_shadow_evictions_total{configuration="eager"} 0.0' in before
    for each in play(HOG, 60, enforce=False):
        sink.publish(ended(each))
    after = generate_latest(registry).decode()
    assert 'koordebpf_shadow_evictions_total{configuration="eager"} 1.0' in after
    assert 'koordebpf_shadow_decisions_total{configuration="eager",kind="in_time"} 1.0' in after
    assert 'koordebpf_shadow_lead_seconds{configuration="eager",over="acting"} 10.0' in after
    assert 'koordebpf_shadow_node_events_total{event="kubelet"} 1.0' in after
    assert len(after.splitlines()) < 60


def test_a_round_that_cannot_be_judged_is_an_error_of_the_sink_alone():
    sink = opened()
    each = next(play(HOG, 1))
    from msgspec.structs import replace

    broken = replace(each.tick, frame=replace(each.tick.frame, strategyInForce=None, sloControllerConfig={"x": "{"}))
    sink.publish(RoundEnded(broken, each.view, each.decision, SignalState(_QUALITY)))
    assert sink.total().node.rounds == 1
