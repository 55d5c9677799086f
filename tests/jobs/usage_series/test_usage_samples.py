"""Which series a round's values are samples of, and what is left for the system."""

from __future__ import annotations

from koordebpf.jobs.usage_series.groups import GroupKeys, Samples, system_samples
from koordebpf.state.series.kinds import BE_CPU, KINDS

GROUPS = {1: ("pod", "uid-1"), 2: ("container", "c1"), 3: ("host_application", "nginx"), 4: ("best_effort", "")}


def filled(which: int, values, only=None) -> Samples:
    samples: Samples = {}
    GroupKeys(GROUPS).fill(samples, which, values, only)
    return samples


def test_values_become_samples_of_their_kinds_and_none_of_the_directories():
    cpu = {1: 0.5, 2: 0.25, 3: 1.0, 4: 0.5, 99: 7.0}
    assert filled(0, cpu) == {
        ("pod_cpu_usage", "uid-1"): 0.5,
        ("container_cpu_usage", "c1"): 0.25,
        ("host_application_cpu_usage", "nginx"): 1.0,
    }
    assert filled(3, cpu) == {("pod_cpu_throttled", "uid-1"): 0.5, ("container_cpu_throttled", "c1"): 0.25}


def test_only_those_that_are_asked_for():
    assert filled(1, {1: 7, 2: 8}, {2: 0.0, 3: 0.0}) == {("container_memory_usage", "c1"): 8}


def test_every_series_has_the_properties_of_its_kind():
    keys = [key for which in range(4) for key in filled(which, dict.fromkeys(GROUPS, 1))]
    keys += [BE_CPU, *system_samples(1.0, 1.0, (0.0, 0.0), {0: 1.0}, {0: 1.0})]
    assert {key[0] for key in keys} <= KINDS.keys()
    assert [key for key in keys if len(key) != 1 + len(KINDS[key[0]])] == []


def test_the_system_is_the_rest_and_never_below_zero():
    assert system_samples(2.0, 10, (0.5, 4), {}, {}) == {("sys_cpu_usage",): 1.5, ("sys_memory_usage",): 6}
    assert system_samples(0.4, 3, (0.5, 4), {}, {}) == {("sys_cpu_usage",): 0.0, ("sys_memory_usage",): 0.0}


def test_what_is_not_known_of_the_node_is_not_known_of_the_system():
    assert system_samples(None, None, (0.5, 4), {0: 1.0}, {}) == {}


def test_the_systems_cpu_is_shared_out_by_what_numa_nodes_use():
    samples = system_samples(2.0, None, (1.0, 0), {0: 1.5, 1: 0.5}, {0: 30, 1: -1})
    assert samples["sys_numa_cpu_usage", "0"] == 0.75
    assert samples["sys_numa_cpu_usage", "1"] == 0.25
    assert samples["sys_numa_memory_usage", "0"] == 30
    assert samples["sys_numa_memory_usage", "1"] == 0
    idle = system_samples(0.0, None, (0.0, 0), {0: 0.0, 1: 0.0}, {})
    assert [idle["sys_numa_cpu_usage", node] for node in "01"] == [0.0, 0.0]
