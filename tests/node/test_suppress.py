"""Suppression below slices of systemd, which writes to them, too: for pods, for the kubelet, for an administrator."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from tests.cluster.api import Object
from tests.node.agent import GuestAgent
from tests.node.followed import GuestFollowed, Span
from tests.node.node import GuestNode
from tests.node.slices import BE, FOLDER, NO_QUOTA, cpus_of, lifted
from tests.node.stories import expect_gone

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


class Policy(msgspec.Struct, frozen=True):
    """How best-effort pods are held: what its file has where nothing is held, and what an administrator may give it."""

    name: str
    file: str
    lifted: str
    percent: int  # that all pods may use: of CPUs not all
    setting: str
    value: str


POLICIES = (
    Policy("cfsQuota", "cpu.max", NO_QUOTA, 90, "CPUQuota=150%", "150000 100000"),
    Policy("cpuset", "cpuset.cpus", "", 60, "AllowedCPUs=0-2", "0-2"),
)


class Suppressed:
    """A node whose agent holds best-effort pods by a policy; `followed` has what its file held since."""

    def __init__(self, node: GuestNode, agent: Callable[..., GuestAgent], policy: Policy) -> None:
        self.node, self.policy, self.file = node, policy, f"{FOLDER}/{policy.file}"
        # The kernel keeps a set that is in use from being empty again: it gets what the slice above it has.
        above = node.guest.check(f"cat {FOLDER}/../cpuset.cpus.effective").strip()
        self.restored = {policy.lifted, above} if policy.file == "cpuset.cpus" else {policy.lifted}
        assert self.text() == policy.lifted
        node.set_thresholds(cpuSuppressThresholdPercent=policy.percent, cpuSuppressPolicy=policy.name)
        self.agent = agent("enforce")
        node.until(lambda: self.text() != policy.lifted, "best-effort pods are held")

    def text(self) -> str:
        return self.node.guest.check(f"cat {self.file}").strip()

    def lifted_spans(self, followed: GuestFollowed) -> list[Span]:
        return [span for span in followed.spans() if span.value in self.restored]


@pytest.fixture(params=POLICIES, ids=lambda policy: policy.name)
def held(request: pytest.FixtureRequest, node: GuestNode, agent: Callable[..., GuestAgent]) -> Suppressed:
    return Suppressed(node, agent, request.param)


def test_systemd_undoes_nothing_and_is_not_fought(
    held: Suppressed, pod: Callable[..., Object], figure: Callable[[str], None]
) -> None:
    node = held.node
    with GuestFollowed(node.guest, held.file) as followed:
        # WHEN systemd runs commands, a pod starts and ends, and the kubelet has its minute
        for command in BY_SYSTEMD:
            node.guest.check(command)
        node.api.delete(pod("more"))
        expect_gone(node, "more")
        node.guest.check(f"sleep {KUBELET_S}", KUBELET_S + 30)
        spans = held.lifted_spans(followed)
        everything = followed.spans()
    # THEN no limit was lifted for long, and the file is not given up
    longest_s = max((each.seconds for each in spans), default=0)
    figure(f"{held.policy.file}: systemd reset it {len(spans)} times, for {longest_s:.2f} s at most")
    assert lifted(spans, held.restored) == []
    assert everything[-1].value not in held.restored
    assert "left to it for an hour" not in held.agent.log()
    # AND at the end the slice is as before
    held.agent.stop()
    assert held.text() in held.restored


def test_a_property_of_the_file_is_what_is_restored(held: Suppressed) -> None:
    held.node.guest.check(f"systemctl set-property --runtime {BE} {held.policy.setting}")
    held.agent.wait_for_log(f": {held.policy.value} → ")
    assert held.text() != held.policy.value
    held.agent.stop()
    assert held.text() == held.policy.value


def test_only_cpus_of_the_slice_above_are_given(node: GuestNode, agent: Callable[..., GuestAgent]) -> None:
    node.guest.check("systemctl set-property --runtime kubepods.slice AllowedCPUs=1-3")
    held = Suppressed(node, agent, POLICIES[1])
    assert cpus_of(held.text()) < {1, 2, 3}
    assert cpus_of(node.guest.check(f"cat {FOLDER}/cpuset.cpus.effective")) == cpus_of(held.text())
