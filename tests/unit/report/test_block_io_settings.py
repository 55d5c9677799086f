"""What block IO wants of single pods, as `koordebpf pod explain` shows it."""

from __future__ import annotations

from koordebpf.policy.block_io.settings import BlockIOSettings
from koordebpf.policy.block_io.strategy import BlockIODecision
from koordebpf.policy.block_io.writes import wanted
from koordebpf.policy.strategy import Empty
from koordebpf.report.hooks.pod_settings import PodSettings, with_block_io
from koordebpf.state.block_io.view import block_io_view
from koordebpf.state.pods.facts import facts_of_pods
from tests.support.values.block_io import block, measured, pod_object, qos

PODS = (pod_object("be"), pod_object("be2"), pod_object("ls", "Burstable", block(readIOPS=5)))
VIEW = block_io_view(measured(*PODS, qos=qos(beClass=[block(writeBPS=8)])), facts_of_pods(PODS))
DECISION = BlockIODecision(state=Empty(), reason="of a test", sources=wanted(VIEW, BlockIOSettings()).writes)
GIVEN = [PodSettings(name, "team", name) for name in ("be", "be2", "ls", "gone")]


def test_each_pod_has_its_own_limits_with_their_field() -> None:
    found = {each.uid: each for each in with_block_io(GIVEN, VIEW, DECISION)}
    assert [(each.path, each.file, each.value) for each in found["be"].settings] == [
        ("kubepods/besteffort/podbe/be-0", "blkio.throttle.write_bps_device", "8:16 4")
    ]
    assert found["ls"].settings[0].source == "annotation koordinator.sh/blkioQOS"
    assert found["be"].settings[0].hook == "BlkIOReconcile"
    assert found["be"].path == "kubepods/besteffort/podbe"
    assert found["gone"] == GIVEN[3]


def test_before_the_first_look_nothing_is_known() -> None:
    assert with_block_io(GIVEN, None, None) == GIVEN
