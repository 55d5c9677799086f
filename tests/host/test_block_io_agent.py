"""Block IO in a running agent: what pods have in their cgroups, what it does to their IO, and that it is restored."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kernel.cgroup.tables import Table
from koordebpf.strategies.block_io.values import BLKIO_QOS_ANNOTATION
from koordebpf.units import MIB
from tests.contract.apiserver import until
from tests.host.live_agent import LiveAgent, left_in
from tests.host.rigs.block_node import BlockNode
from tests.support.loop_disk import LoopDisk
from tests.support.nodes import NodeCgroup

pytestmark = pytest.mark.slow
WBPS, RIOPS = CgroupFile.IO_WRITE_BPS, CgroupFile.IO_READ_IOPS
LIMIT = 4 * MIB


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopDisk]:
    with LoopDisk(tmp_path_factory.mktemp("disk")) as made:
        yield made


@pytest.fixture
def blocks(node: NodeCgroup, disk: LoopDisk) -> Iterator[BlockNode]:
    made = BlockNode(node, disk)
    yield made
    made.close()


def limits(blocks: BlockNode) -> list[object]:
    return [blocks.value(each, WBPS) for each in blocks.limited]


def is_limited(blocks: BlockNode, limit: int = LIMIT) -> bool:
    return limits(blocks) == [Table.of({blocks.disk.number: blocks.part(limit)})] * len(blocks.limited)


def explained(agent: LiveAgent, pod: str) -> str:
    command = [sys.executable, "-m", "koordebpf", "pod", "explain", pod, "--run-dir", str(agent.run_dir)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def is_restored(blocks: BlockNode) -> bool:
    return limits(blocks) == [Table()] * len(blocks.limited)


def test_best_effort_pods_are_limited_and_others_not_until_the_agent_stops(blocks: BlockNode, tmp_path: Path) -> None:
    arguments = blocks.arguments(tmp_path, [blocks.block(writeBPS=LIMIT)])
    with LiveAgent(tmp_path, *arguments, "--enforce") as agent:
        until(lambda: is_limited(blocks), lambda: f"the limits, but: {limits(blocks)}\n{agent.log}")
        # The kernel lets a first slice of 0.1 s pass.
        assert blocks.written_in_s(blocks.be[0], blocks.part(LIMIT) / MIB) > 0.8
        assert blocks.written_in_s(blocks.ls, 4 * LIMIT / MIB) < 3  # where a limit would make it 4 s
        assert agent.metric("koordebpf_block_io_cgroups") == len(blocks.limited)
        changes = until(lambda: [line["change"] for line in agent.lines() if "change" in line], "lines of the audit")
        assert {each["owner"] for each in changes} == {"blockIO"}, changes
        assert agent.stop() == 0
    assert is_restored(blocks)
    assert left_in(tmp_path) == []


def test_a_dry_run_writes_nothing(blocks: BlockNode, tmp_path: Path) -> None:
    with LiveAgent(tmp_path, *blocks.arguments(tmp_path, [blocks.block(writeBPS=LIMIT)])) as agent:
        agent.said("(dry run)")
        tried = f'koordebpf_file_writes_total{{file="{WBPS.value}",result="dry_run"}}'
        until(lambda: agent.metric(tried), "a try")
        assert is_restored(blocks)
        assert agent.stop() == 0


def test_a_pod_has_the_limits_of_its_annotation_for_as_long_as_it_asks(blocks: BlockNode, tmp_path: Path) -> None:
    at = blocks.ls if blocks.version == 1 else blocks.node.pod_paths["ls"]
    asked = {"blocks": [blocks.block(readIOPS=30)]}
    arguments = blocks.arguments(tmp_path)
    with LiveAgent(tmp_path, *arguments, "--enforce") as agent:
        agent.started()
        blocks.node.pods[1]["metadata"]["annotations"] = {BLKIO_QOS_ANNOTATION: json.dumps(asked)}
        blocks.write(tmp_path)
        until(lambda: blocks.value(at, RIOPS) == Table.of({blocks.disk.number: 30}), lambda: f"30, but: {agent.log}")
        page = explained(agent, "default/ls")
        assert "BlkIOReconcile" in page, page
        assert BLKIO_QOS_ANNOTATION in page.replace("\n", ""), page
        blocks.node.pods[1]["metadata"]["annotations"] = {BLKIO_QOS_ANNOTATION: "{"}
        blocks.write(tmp_path)
        until(lambda: blocks.value(at, RIOPS) == Table(), lambda: f"no limit, but: {agent.log}")
        agent.said("pod default/ls: annotation koordinator.sh/blkioQOS")
        assert agent.stop() == 0


def test_a_volume_is_found_by_its_mount(blocks: BlockNode, tmp_path: Path) -> None:
    uid = blocks.node.pods[1]["metadata"]["uid"]
    place = tmp_path / "kubelet/pods" / uid / "volumes/kubernetes.io~csi/pvc-7/mount"
    place.mkdir(parents=True)
    subprocess.run(["mkfs.ext2", "-q", "-F", blocks.disk.path], check=True)
    subprocess.run(["mount", blocks.disk.path, place], check=True)
    try:
        asked = {"blocks": [{"name": "data", "type": "podvolume", "ioCfg": {"writeBPS": LIMIT}}]}
        blocks.node.pods[1]["metadata"]["annotations"] = {BLKIO_QOS_ANNOTATION: json.dumps(asked)}
        blocks.node.pods[1]["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": "c"}}]
        at = blocks.ls if blocks.version == 1 else blocks.node.pod_paths["ls"]
        arguments = blocks.arguments(tmp_path, kubeletDir=str(tmp_path / "kubelet"))
        with LiveAgent(tmp_path, *arguments, "--enforce") as agent:
            wanted = Table.of({blocks.disk.number: LIMIT})
            until(lambda: blocks.value(at, WBPS) == wanted, lambda: f"the limit, but: {agent.log}")
            assert agent.stop() == 0
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_higher_limit_of_another_process_is_set_right_and_a_lower_one_stays(
    blocks: BlockNode, tmp_path: Path
) -> None:
    def put(limit: int) -> None:
        row = f"{blocks.disk.number} " + (f"wbps={limit}" if blocks.version == 2 else f"{limit}")
        blocks.file(blocks.limited[0], WBPS).write_text(row)

    arguments = blocks.arguments(tmp_path, [blocks.block(writeBPS=LIMIT)])
    with LiveAgent(tmp_path, *arguments, "--enforce") as agent:
        until(lambda: is_limited(blocks), lambda: f"the limits, but: {agent.log}")
        put(4 * LIMIT)
        until(lambda: is_limited(blocks), lambda: f"the limits again, but: {limits(blocks)}", 60)
        put(9)
        time.sleep(12)  # it looks at each file again after 10 s
        lower = Table.of({blocks.disk.number: 9})
        assert blocks.value(blocks.limited[0], WBPS) == lower
        assert agent.stop() == 0
    assert blocks.value(blocks.limited[0], WBPS) == lower


def test_a_container_that_ends_leaves_its_part_to_the_others(blocks: BlockNode, tmp_path: Path) -> None:
    one, other = blocks.be
    arguments = blocks.arguments(tmp_path, [blocks.block(writeBPS=LIMIT)])
    ended = blocks.hierarchies.everywhere(one)
    with LiveAgent(tmp_path, *arguments, "--enforce") as agent:
        until(lambda: is_limited(blocks), lambda: f"the limits, but: {limits(blocks)}\n{agent.log}")
        for each in ended:
            each.rmdir()
        at = other if blocks.version == 1 else blocks.limited[0]
        wanted = Table.of({blocks.disk.number: LIMIT})
        until(lambda: blocks.value(at, WBPS) == wanted, lambda: f"the whole limit, but: {agent.log}")
        assert agent.stop() == 0
        assert blocks.value(at, WBPS) == Table()
    for each in ended:
        each.mkdir()  # the node removes it


def test_a_killed_agent_leaves_limits_that_the_next_one_restores(blocks: BlockNode, tmp_path: Path) -> None:
    arguments = blocks.arguments(tmp_path, [blocks.block(writeBPS=LIMIT)])
    with LiveAgent(tmp_path, *arguments, "--enforce") as agent:
        until(lambda: is_limited(blocks), lambda: f"the limits, but: {agent.log}")
        agent.stop(signal.SIGKILL)
    assert is_limited(blocks)
    # WHEN the next one is to limit them by less
    arguments = blocks.arguments(tmp_path, [blocks.block(writeBPS=2 * LIMIT)])
    with LiveAgent(tmp_path, *arguments, "--enforce") as agent:
        until(lambda: is_limited(blocks, 2 * LIMIT), lambda: f"the limits, but: {limits(blocks)}\n{agent.log}")
        # WHEN the class is no longer enabled
        blocks.write(tmp_path, [blocks.block(writeBPS=LIMIT)], enable=False)
        until(lambda: is_restored(blocks), lambda: f"no limit, but: {limits(blocks)}\n{agent.log}")
        assert agent.stop() == 0


def test_a_gate_that_is_off_restores_what_a_killed_agent_left(blocks: BlockNode, tmp_path: Path) -> None:
    arguments = blocks.arguments(tmp_path, [blocks.block(writeBPS=LIMIT)])
    with LiveAgent(tmp_path, *arguments, "--enforce") as agent:
        until(lambda: is_limited(blocks), lambda: f"the limits, but: {agent.log}")
        agent.stop(signal.SIGKILL)
    with LiveAgent(tmp_path, *arguments[:-1], "BECPUSuppress=false", "--enforce") as agent:
        until(lambda: is_restored(blocks), lambda: f"no limit, but: {limits(blocks)}\n{agent.log}")
        assert agent.stop() == 0


def test_a_device_that_is_not_there_is_named_and_the_others_are_limited(blocks: BlockNode, tmp_path: Path) -> None:
    absent = {"name": "/dev/none", "type": "device", "ioCfg": {"writeBPS": 5}}
    arguments = blocks.arguments(tmp_path, [absent, blocks.block(writeBPS=LIMIT)])
    with LiveAgent(tmp_path, *arguments, "--enforce") as agent:
        agent.said("'/dev/none': must be a block device")
        until(lambda: is_limited(blocks), lambda: f"the limits, but: {agent.log}")
        assert agent.stop() == 0
