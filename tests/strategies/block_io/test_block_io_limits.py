"""Blocks of a NodeSLO and of annotations to limits of directories, on both versions of cgroups."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from koordebpf.kernel.cgroup.files import CgroupFile
from koordebpf.kube.cache.objects import Pod
from koordebpf.state.pods.facts import facts_of_pods
from koordebpf.strategies.block_io.decide import Wanted, wanted
from koordebpf.strategies.block_io.values import (
    BLKIO_QOS_ANNOTATION,
    MAX_BLOCKS,
    BlockIOMeasured,
    BlockIOSettings,
    block_io_view,
)
from tests.support.values.block_io import FILES, block, measured, pod_object, qos

RBPS, WBPS, RIOPS, WIOPS = (
    CgroupFile.IO_READ_BPS,
    CgroupFile.IO_WRITE_BPS,
    CgroupFile.IO_READ_IOPS,
    CgroupFile.IO_WRITE_IOPS,
)
WEIGHT, LATENCY = CgroupFile.IO_WEIGHT, CgroupFile.IO_LATENCY
MIB = 1 << 20
BE = "kubepods/besteffort"


def made(given: BlockIOMeasured, *pods: Pod, **settings: Any) -> Wanted:
    return wanted(block_io_view(given, facts_of_pods(pods)), BlockIOSettings(**settings))


def tables(result: Wanted) -> dict[tuple[str, CgroupFile], dict[str, int]]:
    return {
        (each.write.path, each.write.file): dict(each.write.value.rows)  # type: ignore[union-attr]
        for each in result.writes
    }


def with_annotation(pod: Pod, text: str) -> Pod:
    meta = msgspec.structs.replace(pod.metadata, annotations={BLKIO_QOS_ANNOTATION: text})
    return msgspec.structs.replace(pod, metadata=meta)


class TestBestEffort:
    def test_on_v2_the_directory_has_each_limit(self) -> None:
        slo = qos(beClass=[block(readBPS=MIB, writeBPS=2 * MIB, readIOPS=100, writeIOPS=200, ioWeightPercent=20)])
        be = pod_object("be")
        result = made(measured(be, version=2, qos=slo), be)
        assert tables(result) == {
            (BE, RBPS): {"8:16": MIB},
            (BE, WBPS): {"8:16": 2 * MIB},
            (BE, RIOPS): {"8:16": 100},
            (BE, WIOPS): {"8:16": 200},
            (BE, WEIGHT): {"8:16": 20},
        }
        assert {each.source for each in result.writes} == {"spec.resourceQOSStrategy.beClass.blkioQOS"}
        assert result.problems == ()

    def test_on_v1_the_containers_share_it_and_a_sandbox_takes_no_part(self) -> None:
        slo = qos(beClass=[block(writeBPS=3 * MIB, writeIOPS=2, ioWeightPercent=20)])
        pods = pod_object("one", containers=2), pod_object("two"), pod_object("ls", "Burstable")
        result = tables(made(measured(*pods, qos=slo), *pods))
        assert result == {
            (BE, WEIGHT): {"8:16": 20},
            **{
                (f"{BE}/pod{each}", file): {"8:16": limit}
                for each in ("one/one-0", "one/one-1", "two/two-0")
                for file, limit in ((WBPS, MIB), (WIOPS, 1))  # never none
            },
        }

    @pytest.mark.parametrize(("share", "paths"), [("each", [f"{BE}/podbe/be-0"]), ("directory", [BE])])
    def test_on_v1_it_may_be_each_containers_or_the_directorys(self, share: str, paths: list[str]) -> None:
        be = pod_object("be")
        result = made(measured(be, qos=qos(beClass=[block(writeBPS=MIB)])), be, v1_share=share)
        assert tables(result) == {(path, WBPS): {"8:16": MIB} for path in paths}

    def test_on_v1_there_is_nothing_to_limit_without_a_container(self) -> None:
        assert made(measured(qos=qos(beClass=[block(writeBPS=MIB)]))).writes == ()

    def test_the_lower_limit_of_two_blocks_on_one_disk_counts(self) -> None:
        slo = qos(beClass=[block(writeBPS=5 * MIB), block("wide", "volumegroup", writeBPS=3 * MIB)])
        assert tables(made(measured(version=2, qos=slo))) == {(BE, WBPS): {"8:16": 3 * MIB, "8:32": 3 * MIB}}

    @pytest.mark.parametrize("fields", [{}, {"writeBPS": 0}, {"writeIOPS": (1 << 32) - 1}])
    def test_zero_nothing_and_more_than_the_kernel_counts_are_no_limit(self, fields: dict[str, int]) -> None:
        result = made(measured(version=2, qos=qos(beClass=[block(**fields)])))
        assert (result.writes, result.problems) == ((), ())

    def test_what_is_not_enabled_or_not_there_limits_nothing(self) -> None:
        off = msgspec.convert(
            {"beClass": {"blkioQOS": {"enable": False, "blocks": [block(writeBPS=1)]}}, "lsClass": {}},
            type(qos()),
        )
        for given in (off, qos(), None):
            assert made(measured(version=2, qos=given)) == Wanted()
        no_directory = msgspec.structs.replace(
            measured(version=2, qos=qos(beClass=[block(writeBPS=1)])), directories={}
        )
        assert made(no_directory) == Wanted()

    @pytest.mark.parametrize(
        ("bad", "said"),
        [
            (block("/dev/vdz", writeBPS=1), "beClass.blkioQOS.blocks[0].name: '/dev/vdz': must be a block device"),
            (block("none", "volumegroup", writeBPS=1), "must be a volume group of LVM"),
            (block("data", "podvolume", writeBPS=1), "must be a volume of the pod"),
            (block(kind="disk", writeBPS=1), "blocks[0].type: 'disk': must be device, volumegroup or podvolume"),
        ],
    )
    def test_one_bad_block_is_left_out_and_the_others_count(self, bad: dict[str, Any], said: str) -> None:
        result = made(measured(version=2, qos=qos(beClass=[bad, block(writeBPS=7)])))
        assert tables(result) == {(BE, WBPS): {"8:16": 7}}
        assert len(result.problems) == 1
        assert said in result.problems[0]
        assert result.problems[0].endswith("the block is left out")

    def test_a_field_that_has_no_effect_there_is_named(self) -> None:
        result = made(measured(version=2, qos=qos(beClass=[block(writeBPS=7, readLatency=5)])))
        assert tables(result) == {(BE, WBPS): {"8:16": 7}}
        assert "beClass.blkioQOS.blocks[0].ioCfg.readLatency: has no effect here" in result.problems[0]

    def test_a_file_that_the_node_has_not_is_named_and_not_written(self) -> None:
        files = tuple(each for each in FILES if each is not WEIGHT)
        slo = qos(beClass=[block(writeBPS=7, ioWeightPercent=10)])
        for version, name in ((1, "blkio.bfq.weight_device"), (2, "io.weight")):
            be = pod_object("be")
            result = made(measured(be, version=version, files=files, qos=slo), be)
            assert {file for _, file in tables(result)} == {WBPS}
            assert f"this node has no {name}" in result.problems[0]


class TestPods:
    def test_a_pod_has_the_limits_of_its_annotation(self) -> None:
        pod = pod_object("ls", "Burstable", block("/dev/vdb1", readIOPS=50, ioWeightPercent=30))
        expected = {
            ("kubepods/burstable/podls", RIOPS): {"8:16": 50},
            ("kubepods/burstable/podls", WEIGHT): {"8:16": 30},
        }
        assert tables(made(measured(pod, version=2), pod)) == expected

    def test_on_v1_its_containers_share_them_and_the_lower_limit_wins(self) -> None:
        asking = pod_object("asking", "BestEffort", block(writeBPS=100), containers=2)
        other = pod_object("other")
        given = measured(asking, other, qos=qos(beClass=[block(writeBPS=90, readBPS=3)]))
        result = made(given, asking, other)
        found = tables(result)
        assert found[f"{BE}/podasking/asking-0", WBPS] == {"8:16": 30}
        assert found[f"{BE}/podasking/asking-0", RBPS] == {"8:16": 1}
        assert found[f"{BE}/podother/other-0", WBPS] == {"8:16": 30}
        sources = {(each.write.path, each.write.file): each.source for each in result.writes}
        assert " and annotation koordinator.sh/blkioQOS" in sources[f"{BE}/podasking/asking-0", WBPS]

    @pytest.mark.parametrize(
        ("name", "volumes", "spec", "disks"),
        [
            ("pvc-1", {"pvc-1": ("8:16",)}, ("data",), ("8:16",)),  # by the PersistentVolume
            ("data", {"pvc-1": ("8:16",)}, ("data",), ("8:16",)),  # the only claim
            ("data", {"pvc-1": ("8:16",), "pvc-2": ("8:16",)}, ("data", "logs"), ("8:16",)),  # on one disk
            ("scratch", {"pvc-1": ("8:16",), "scratch": ("7:0",)}, ("data", "scratch"), ("7:0",)),  # inline
        ],
    )
    def test_a_volume_is_found_by_what_kubelet_has_mounted(
        self, name: str, volumes: dict[str, tuple[str, ...]], spec: tuple[str, ...], disks: tuple[str, ...]
    ) -> None:
        pod = pod_object("p", "Burstable", block(name, "podvolume", writeBPS=9), volumes=spec)
        result = made(measured(pod, version=2, volumes={"p": volumes}), pod)
        assert tables(result) == {("kubepods/burstable/podp", WBPS): dict.fromkeys(disks, 9)}

    @pytest.mark.parametrize(
        ("name", "volumes", "said"),
        [
            ("data", {"pvc-1": ("8:16",), "pvc-2": ("8:32",)}, "must be the PersistentVolume's name"),
            ("data", {}, "must be a volume of the pod"),
            ("../../etc", {"pvc-1": ("8:16",)}, "must be a volume of the pod"),
            ("pvc-9", {"pvc-1": ("8:16",)}, "must be a volume of the pod"),
        ],
    )
    def test_a_volume_that_is_not_known_is_named(
        self, name: str, volumes: dict[str, tuple[str, ...]], said: str
    ) -> None:
        pod = pod_object("p", "Burstable", block(name, "podvolume", writeBPS=9), volumes=("data", "logs"))
        result = made(measured(pod, version=2, volumes={"p": volumes}), pod)
        assert result.writes == ()
        assert result.problems[0].startswith("pod team/p: annotation koordinator.sh/blkioQOS.blocks[0].name")
        assert said in result.problems[0]

    @pytest.mark.parametrize(
        "text",
        [
            "{", "[]", '{"blocks": 5}', '{"blocks": [{"ioCfg": {"writeBPS": -1}}]}', "x" * (33 << 10), "\ud800{",
            json.dumps({"blocks": [block()] * (MAX_BLOCKS + 1)}), "[" * 5000,
            '{"blocks": [{"ioCfg": {"ioWeightPercent": 101}}]}',
        ],
    )  # fmt: skip
    def test_an_annotation_that_cannot_be_read_is_its_pods_own_problem(self, text: str) -> None:
        bad = with_annotation(pod_object("bad"), text)
        good = pod_object("good", "BestEffort", block(writeBPS=9))
        result = made(measured(bad, good, version=2), bad, good)
        assert tables(result) == {(f"{BE}/podgood", WBPS): {"8:16": 9}}
        (problem,) = result.problems
        assert problem.startswith("pod team/bad: annotation koordinator.sh/blkioQOS")
        assert len(problem) < 400

    @pytest.mark.parametrize("text", ["", "{}", '{"blocks": null}'])
    def test_an_empty_annotation_asks_for_nothing(self, text: str) -> None:
        pod = with_annotation(pod_object("p"), text)
        assert made(measured(pod, version=2), pod) == Wanted()

    def test_a_pod_never_sets_a_target_that_slows_down_others(self) -> None:
        pod = pod_object("p", "Burstable", block(readLatency=1, writeLatency=1, modelReadBPS=5))
        result = made(measured(pod, version=2), pod)
        assert result.writes == ()
        assert len(result.problems) == 3

    def test_only_running_pods_count(self) -> None:
        pod = pod_object("p", "Burstable", block(writeBPS=9))
        ended = msgspec.structs.replace(pod, status=msgspec.structs.replace(pod.status, phase="Succeeded"))
        assert made(measured(pod, version=2), ended) == Wanted()
        assert made(measured(pod, version=2)) == Wanted()


class TestLatencies:
    def test_ls_is_the_burstable_directory_and_lsr_each_guaranteed_pod(self) -> None:
        slo = qos(lsClass=[block(readLatency=4000, writeLatency=2000)], lsrClass=[block(readLatency=1000)])
        pods = pod_object("be"), pod_object("g", "Guaranteed")
        result = made(measured(*pods, version=2, qos=slo), *pods)
        assert tables(result) == {
            ("kubepods/burstable", LATENCY): {"8:16": 2000},
            ("kubepods/podg", LATENCY): {"8:16": 1000},
        }

    def test_limits_of_these_classes_are_named(self) -> None:
        result = made(measured(version=2, qos=qos(lsClass=[block(writeBPS=5)])))
        assert result.writes == ()
        assert "lsClass.blkioQOS.blocks[0].ioCfg.writeBPS: has no effect here" in result.problems[0]

    def test_v1_has_none(self) -> None:
        files = tuple(each for each in FILES if each is not LATENCY)
        result = made(measured(files=files, qos=qos(lsClass=[block(readLatency=5)])))
        assert result.writes == ()
        assert "this node has no io.latency" in result.problems[0]


class TestRoot:
    def test_cost_has_koordlets_defaults_and_a_model_where_it_is_enabled(self) -> None:
        slo = qos(cgroupRoot=[block(readLatency=500, enableUserModel=True, modelReadBPS=9, modelWriteRandIOPS=8)])
        assert tables(made(measured(version=2, qos=slo))) == {
            ("", CgroupFile.IO_COST_RPCT): {"8:16": 95},
            ("", CgroupFile.IO_COST_RLAT): {"8:16": 500},
            ("", CgroupFile.IO_COST_WPCT): {"8:16": 95},
            ("", CgroupFile.IO_COST_WLAT): {"8:16": 3000},
            ("", CgroupFile.IO_MODEL_RBPS): {"8:16": 9},
            ("", CgroupFile.IO_MODEL_WRANDIOPS): {"8:16": 8},
        }

    def test_a_model_that_is_not_enabled_and_limits_are_named(self) -> None:
        result = made(measured(version=2, qos=qos(cgroupRoot=[block(modelReadBPS=9, writeBPS=5), block("/dev/none")])))
        assert {file for _, file in tables(result)} == {
            CgroupFile.IO_COST_RPCT, CgroupFile.IO_COST_RLAT, CgroupFile.IO_COST_WPCT, CgroupFile.IO_COST_WLAT,
        }  # fmt: skip
        assert ["enableUserModel" in each for each in result.problems] == [True, False, False]

    def test_without_the_files_it_is_named_once(self) -> None:
        result = made(measured(version=2, files=(WBPS,), qos=qos(cgroupRoot=[block()])))
        assert result.writes == ()
        (problem,) = result.problems
        assert problem.endswith("cgroupRoot.blkioQOS: this node has no io.cost.qos, which it needs: it has no effect")
