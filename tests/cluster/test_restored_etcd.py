"""etcd is restored from a backup: the cluster returns to an older state, and the agent with it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pytest

from koordebpf.kube.cache.reflector import Pace
from koordebpf.kube.http.transport import open_cluster
from koordebpf.kube.sources.api import ApiSource
from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import ControlPlane, control_plane
from tests.cluster.objects import AGENT, NAMESPACE, install, node, nodeslo, pod
from tests.contract.apiserver import until

# As by default, but within a test: a watch is silent for 75 s, and older lists are believed after 120 s.
_PACE = Pace(first_s=0.1, cap_s=1.0, silence_s=5.0, restored_s=10.0)


@pytest.fixture
def plane(binaries: Binaries) -> Iterator[ControlPlane]:
    """A cluster of its own: what comes back from a backup would be no other test's."""
    with control_plane(binaries.kubernetes) as made:
        install(made.api)
        made.api.create(node("n1"), nodeslo("n1", memoryEvictThresholdPercent=70), pod("kept", "n1"))
        yield made


@pytest.mark.slow
def test_what_the_backup_has_is_believed_after_a_while(
    plane: ControlPlane, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    backup = plane.back_up()
    later = plane.api.create(pod("later", "n1"))
    slo = nodeslo("n1")
    plane.api.patch(slo, {"spec": {"resourceUsedThresholdWithBE": {"memoryEvictThresholdPercent": 60}}})
    # The cluster continues; the backup's version is far behind.
    for number in range(50):
        plane.api.patch(later, {"metadata": {"labels": {"number": str(number)}}})
    source = ApiSource(open_cluster(plane.service_account(NAMESPACE, AGENT)), "n1", _PACE)
    source.start(lambda: None)

    def names() -> set[str]:
        return {each.metadata.name for each in source.state().pods}

    def percent() -> str:
        return bytes(source.state().nodeslo or b"").decode()

    try:
        until(lambda: names() == {"kept", "later"} and "60" in percent(), "the cluster as it is")
        with caplog.at_level(logging.WARNING):
            plane.restore(backup)
            back = time.monotonic()
            until(lambda: names() == {"kept"}, "the pods of the backup", timeout_s=90)
            took_s = time.monotonic() - back
        assert any("etcd was restored from a backup" in record.getMessage() for record in caplog.records)
        until(lambda: "70" in percent(), "the NodeSLO of the backup")
        until(lambda: source.state().problems == (), lambda: f"health: {source.state().problems}")
        # And it sees what happens from now on, though the versions have all been there before.
        plane.api.create(pod("new", "n1"))
        until(lambda: names() == {"kept", "new"}, "a pod of the time after")
        with capsys.disabled():
            print(f"\n  restored etcd: believed {took_s:.0f} s after the API server was back (silence 5 s, lists 10 s)")
    finally:
        source.close()
