"""What the kernel, systemd and containerd of such a node offer: each by using it."""

from __future__ import annotations

from tests.cluster.objects import pod
from tests.node.image import Suite
from tests.node.node import GuestNode

_DISK = "/dev/vda"


def test_pods_are_in_slices_of_systemd(shared_node: GuestNode) -> None:
    units = shared_node.guest.check("systemctl list-units --type=slice --no-legend --plain 'kubepods*'")
    assert {"kubepods.slice", "kubepods-besteffort.slice", "kubepods-burstable.slice"} <= set(units.split())
    for name, above in (("web", "kubepods-burstable"), ("batch", "kubepods-besteffort")):
        found = shared_node.pod(name)
        assert found is not None
        assert f"/kubepods.slice/{above}.slice/{above}-pod" in shared_node.cgroup(found)
        shared_node.guest.check(f"test -d {shared_node.cgroup(found)}")


def test_no_unit_of_systemd_has_failed(shared_node: GuestNode) -> None:
    assert shared_node.guest.check("systemctl list-units --failed --no-legend --plain").split() == []


def test_the_hierarchy_is_v2_alone(shared_node: GuestNode) -> None:
    assert shared_node.guest.check("stat -fc %T /sys/fs/cgroup").strip() == "cgroup2fs"
    controllers = shared_node.guest.check("cat /sys/fs/cgroup/kubepods.slice/cgroup.controllers").split()
    assert {"cpu", "cpuset", "memory", "io", "pids"} <= set(controllers)


def test_psi_takes_a_trigger(shared_node: GuestNode) -> None:
    cgroup = "/sys/fs/cgroup/kubepods.slice"
    shared_node.guest.check(f"exec 3<>{cgroup}/memory.pressure && echo 'some 50000 500000' >&3")


def test_nri_listens_where_the_runtime_has_it(shared_node: GuestNode, suite: Suite) -> None:
    assert f" {suite.containerd}." in shared_node.guest.check("containerd --version")
    sockets = shared_node.guest.check("ss -lxH")
    plugins = shared_node.guest.check("ctr plugins ls")
    states = [line.split()[-1] for line in plugins.splitlines() if line.startswith("io.containerd.nri.v1")]
    assert "io.containerd.grpc.v1" in plugins
    assert (states, "/run/nri/nri.sock" in sockets) == ((["ok"], True) if suite.has_nri else ([], False))


def test_memory_is_reclaimed_on_demand(shared_node: GuestNode) -> None:
    cgroup = "/sys/fs/cgroup/system.slice"
    before = int(shared_node.guest.check(f"cat {cgroup}/memory.current"))
    answer = shared_node.guest.run(f"echo 8M >{cgroup}/memory.reclaim")
    # EAGAIN: less than that could be reclaimed.
    assert answer.code == 0 or "Resource temporarily unavailable" in answer.text, answer.text
    assert int(shared_node.guest.check(f"cat {cgroup}/memory.current")) < before


def test_cpu_and_io_limits_are_taken(shared_node: GuestNode) -> None:
    device = shared_node.guest.check(f"lsblk -dno MAJ:MIN {_DISK}").strip()
    found = shared_node.pod("batch")
    assert found is not None
    cgroup = shared_node.cgroup(found)
    limits = {"cpu.max": "50000 100000", "cpu.max.burst": "20000", "io.max": f"{device} rbps=1048576"}
    none = {"cpu.max.burst": "0", "cpu.max": "max", "io.max": f"{device} rbps=max"}
    try:
        for name, value in limits.items():
            shared_node.guest.check(f"echo '{value}' >{cgroup}/{name}")
            assert shared_node.guest.check(f"cat {cgroup}/{name}").startswith(value), name
    finally:
        for name, value in none.items():
            shared_node.guest.check(f"echo '{value}' >{cgroup}/{name}")


def test_io_cost_is_switched_on(shared_node: GuestNode) -> None:
    device = shared_node.guest.check(f"lsblk -dno MAJ:MIN {_DISK}").strip()
    qos = "/sys/fs/cgroup/io.cost.qos"
    shared_node.guest.check(f"echo '{device} enable=1 ctrl=auto' >{qos}")
    assert f"{device} enable=1" in shared_node.guest.check(f"cat {qos}")
    shared_node.guest.check(f"echo '{device} enable=0' >{qos}")


def test_a_pod_dies_by_cgroup_kill(shared_node: GuestNode) -> None:
    made = shared_node.add(pod("victim", shared_node.name))
    shared_node.guest.check(f"echo 1 >{shared_node.cgroup(made)}/cgroup.kill")

    def has_failed() -> bool:
        found = shared_node.pod("victim")
        return found is not None and found["status"]["phase"] == "Failed"

    shared_node.until(has_failed, "the kubelet says that the pod has failed")
    shared_node.api.delete(made, gracePeriodSeconds=0)
