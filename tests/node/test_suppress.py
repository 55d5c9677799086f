"""Suppression below slices of systemd, which writes to them, too: for pods, for the kubelet, for an administrator."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cluster.objects import pod
from tests.node.agent import GuestAgent
from tests.node.followed import GuestFollowed, Span
from tests.node.node import GuestNode
from tests.node.stories import expect_gone

BE = "kubepods-besteffort.slice"
FOLDER = f"/sys/fs/cgroup/kubepods.slice/{BE}"
# Policy, its file, what that holds where nothing is held, and what all pods may use: of CPUs not all.
POLICIES = (("cfsQuota", "cpu.max", "max 100000", 90), ("cpuset", "cpuset.cpus", "", 60))
# Ten times as long as the agent lets a reset stand.
LIFTED_S = 1.0
KUBELET_S = 75  # it sets the properties of its slices each minute
BY_SYSTEMD = (
    "systemctl daemon-reload",
    "systemctl daemon-reexec",
    "systemd-run --quiet --collect --wait true",
    f"systemd-run --quiet --collect --wait --slice={BE} true",
    "systemctl set-property --runtime kubepods.slice CPUWeight=200",
    f"systemctl set-property --runtime {BE} CPUWeight=2",
    f"systemctl set-property --runtime {BE} MemoryHigh=1800M",
)


class Suppressed:
    """A node whose agent holds best-effort pods by a policy; `followed` has what its file held since."""

    def __init__(self, node: GuestNode, policy: str, file: str, lifted: str, percent: int) -> None:
        self.node, self.file, self.lifted = node, f"{FOLDER}/{file}", lifted
        # The kernel keeps a set that is in use from being empty again: it gets what the slice above it has.
        above = node.guest.check(f"cat {FOLDER}/../cpuset.cpus.effective").strip()
        self.restored = {lifted, above} if file == "cpuset.cpus" else {lifted}
        assert self.text() == lifted
        node.set_thresholds(cpuSuppressThresholdPercent=percent, cpuSuppressPolicy=policy)
        self.agent: GuestAgent = node.agent("--enforce")
        node.until(lambda: self.text() != lifted, "best-effort pods are held")

    def text(self) -> str:
        return self.node.guest.check(f"cat {self.file}").strip()

    def lifted_spans(self, followed: GuestFollowed) -> list[Span]:
        return [span for span in followed.spans() if span.value in self.restored]


@pytest.fixture(params=POLICIES, ids=[policy for policy, *_ in POLICIES])
def held(request: pytest.FixtureRequest, node: GuestNode) -> Suppressed:
    return Suppressed(node, *request.param)


def test_systemd_undoes_nothing_and_is_not_fought(
    held: Suppressed, record_property: Callable[[str, str], None]
) -> None:
    node = held.node
    with GuestFollowed(node.guest, held.file) as followed:
        # WHEN systemd runs commands, a pod starts and ends, and the kubelet has its minute
        for command in BY_SYSTEMD:
            node.guest.check(command)
        one = node.add(pod("more", node.name))
        node.api.delete(one)
        expect_gone(node, "more")
        node.guest.check(f"sleep {KUBELET_S}", KUBELET_S + 30)
        spans = held.lifted_spans(followed)
        everything = followed.spans()
    # THEN no limit was lifted for long, and the file is not given up
    longest_s = max((each.seconds for each in spans), default=0)
    file = held.file.rpartition("/")[2]
    record_property("figure", f"{file}: systemd reset it {len(spans)} times, for {longest_s:.2f} s at most")
    assert [each for each in spans if each.seconds >= LIFTED_S] == []
    assert everything[-1].value not in held.restored
    assert "left to it for an hour" not in held.agent.log()
    # AND at the end the slice is as before
    held.agent.stop()
    assert held.text() in held.restored


def test_a_property_of_the_file_is_what_is_restored(held: Suppressed) -> None:
    setting, value = ("CPUQuota=150%", "150000 100000") if "cpu.max" in held.file else ("AllowedCPUs=0-2", "0-2")
    held.node.guest.check(f"systemctl set-property --runtime {BE} {setting}")
    held.agent.wait_for_log(f": {value} → ")
    assert held.text() != value
    held.agent.stop()
    assert held.text() == value
