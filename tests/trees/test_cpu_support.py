"""By which files best-effort pods can be held here, and what is missing where they cannot."""

from __future__ import annotations

from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.kernel.host.cpu_support import support_of_isolation, support_of_suppression
from koordebpf.kernel.signals import SignalSource

BE = "kubepods/besteffort"
V1 = {
    "cpu": {BE: {"cpu.cfs_quota_us": "-1\n", "cpu.idle": "0\n"}},
    "cpuacct": {BE: {"cpuacct.usage": "1\n"}},
    "cpuset": {BE: {"cpuset.cpus": "0-3\n"}},
}


def v1(root) -> dict[str, ControllerMount]:
    return {name: ControllerMount(1, root / name) for name in ("cpu", "cpuacct", "cpuset")}


def v2(root) -> dict[str, ControllerMount]:
    return {name: ControllerMount(2, root) for name in ("cpu", "cpuset", "memory")}


def support(mounts, *, node="", be=BE, cpus=4) -> dict[str, SignalSource]:
    found = support_of_suppression(mounts, node, be, cpus)
    for each in found:
        assert each.works or (each.reason and each.remedy and each.cost), each
    return {each.signal.removeprefix("suppression by "): each for each in found}


def test_v1_has_every_policy(tree):
    root = tree(V1)
    found = support(v1(root))
    assert [each.reason for each in found.values()] == [""] * 4
    assert found["CPU usage"].how == "/proc/stat, cpuacct.usage of cgroups"
    assert found["cpuset"].how == f"cpuset.cpus, cgroup v1 at {root / 'cpuset'}"
    assert found["cfsQuota"].how == f"cpu.cfs_quota_us, cgroup v1 at {root / 'cpu'}"
    assert found["cpuIdle"].how == f"cpu.idle, cgroup v1 at {root / 'cpu'}"


def test_on_v2_a_controller_that_is_not_handed_down_says_where(tree):
    above = {"cgroup.subtree_control": "cpu memory\n", "besteffort": {"cpu.max": "max 100000\n", "cpu.idle": "0\n"}}
    root = tree({"kubepods": above})
    found = support(v2(root))
    assert found["CPU usage"].how == "/proc/stat, cpu.stat of cgroups"
    assert found["cfsQuota"].works and found["cpuIdle"].works
    assert not found["cpuset"].works
    switch = root / "kubepods/cgroup.subtree_control"
    assert found["cpuset"].reason == f"cpuset is not in {switch}"
    assert f"echo +cpuset > {switch}" in found["cpuset"].remedy


def test_without_cpu_idle_there_is_the_least_weight(tree):
    root = tree({"cpu": {BE: {"cpu.cfs_quota_us": "-1\n"}}, "cpuset": V1["cpuset"]})
    found = support(v1(root))["cpuIdle"]
    assert (found.works, found.how) == (True, "the least cpu.shares")
    assert found.reason == "this kernel has no cpu.idle"


def test_an_older_kernel_is_the_reason_where_the_directory_is_there(tree):
    root = tree({"cpu": {BE: {"cpu.shares": "2\n"}}, "cpuset": V1["cpuset"]})
    found = support(v1(root))["cfsQuota"]
    assert (found.works, found.reason) == (False, "this kernel has no cpu.cfs_quota_us")
    assert found.remedy == "Use a newer kernel, or another policy."
    root = tree({"kubepods": {"cgroup.subtree_control": "cpu cpuset\n", "besteffort": {"cpuset.cpus": "\n"}}})
    found = support(v2(root))["cfsQuota"]
    assert (found.works, found.reason) == (False, "this kernel has no cpu.max")


def test_a_directory_that_is_missing_in_one_hierarchy_is_named(tree):
    root = tree({"cpu": V1["cpu"]})
    found = support(v1(root))
    assert found["cpuset"].reason == f"there is no {root / 'cpuset' / BE}"
    assert found["cfsQuota"].works
    assert support(v1(root), node="kind/node")["CPU usage"].reason == f"there is no {root / 'cpuacct/kind/node'}"


def test_a_controller_that_is_not_mounted(tree):
    root = tree(V1)
    found = support({"cpu": ControllerMount(1, root / "cpu")})
    assert found["cpuset"].reason == "no cgroup mount has the cpuset controller"
    assert not support({})["CPU usage"].works


def test_one_cpu_cannot_be_shared_out(tree):
    found = support(v1(tree(V1)), cpus=1)
    assert (found["cpuset"].works, found["cfsQuota"].works) == (False, True)
    assert found["cpuset"].reason == "fewer than 2 CPUs are online"


def test_two_cpus_are_what_best_effort_pods_keep(tree):
    found = support(v1(tree(V1)), cpus=2)
    assert (found["cpuset"].works, found["cfsQuota"].works) == (False, True)
    assert found["cpuset"].reason == "best-effort pods keep 2 CPUs, and no more are online"
    assert found["cpuset"].remedy == "Set cpuSuppressPolicy to cfsQuota."


def test_isolated_cpus_are_named_and_a_node_without_has_no_line(tree):
    assert support_of_isolation(tree({"cpu": {"isolated": "\n"}})) == []
    (found,) = support_of_isolation(tree({"cpu": {"isolated": "4-7\n", "nohz_full": "4-6\n"}}))
    assert (found.signal, found.works) == ("isolated CPUs", True)
    assert found.how.startswith("isolated 4-7, nohz_full 4-6: in no share pool")
    (odd,) = support_of_isolation(tree({"cpu": {"isolated": "some\n"}}))
    assert not odd.works
    assert "cpu/isolated" in odd.reason
