"""What confines the agent, by the label of its process."""

from __future__ import annotations

import pytest

from koordebpf.kernel.host.support import confinement, support_of_confinement

CONTAINER = "system_u:system_r:container_t:s0:c1,c2"


@pytest.mark.parametrize(
    ("label", "enforce", "how"),
    [
        ("", "", "none: no SELinux or AppArmor here"),
        ("unconfined", "", "none: AppArmor profile unconfined"),
        ("agent (complain)", "", "none: AppArmor profile agent (complain)"),
        ("system_u:system_r:spc_t:s0", "1", "none: SELinux type spc_t"),
        ("unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023", "1", "none: SELinux type unconfined_t"),
        ("kernel", "", "AppArmor profile kernel: a kill reaches processes of the same profile only"),
        (CONTAINER, "0", "none: SELinux type container_t, permissive"),
    ],
)
def test_what_confines_nothing_an_agent_needs_is_no_fault(label: str, enforce: str, how: str) -> None:
    found = confinement(label, enforce)
    assert (found.how, found.works, found.reason) == (how, True, "")


def test_a_profile_of_apparmor_bounds_who_can_be_killed() -> None:
    found = confinement("cri-containerd.apparmor.d (enforce)", "")
    assert found.how.startswith("AppArmor profile cri-containerd.apparmor.d (enforce): a kill reaches")
    assert not found.reason


@pytest.mark.parametrize(
    ("enforce", "reason"),
    [
        ("1", "type container_t is confined"),
        ("", "type container_t is confined where SELinux enforces"),
    ],
)
def test_a_confined_type_is_named_with_the_remedy(enforce: str, reason: str) -> None:
    found = confinement(CONTAINER, enforce)
    assert (found.reason, found.remedy) == (reason, "Give the pod seLinuxOptions.type spc_t.")
    assert "bpf(2)" in found.cost


def test_this_process_is_confined_by_something_or_nothing() -> None:
    assert support_of_confinement().how
