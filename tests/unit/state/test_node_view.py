from __future__ import annotations

import json

import msgspec
import pytest
from msgspec.structs import replace

from koordebpf.decision.decide_tick import TickFrame, TickSettings
from koordebpf.decision.frames import decode_frame, decode_json, encode_frame, frame_schema
from koordebpf.errors import ConfigError
from koordebpf.kube.cache.objects import (
    Container,
    HostPathVolumeSource,
    Node,
    NodeStatus,
    ObjectMeta,
    Pod,
    PodSpec,
    ResourceRequirements,
    Volume,
)
from koordebpf.slo.strategies.system import SystemStrategy
from koordebpf.state.build import capacity_doubt, node_capacity_bytes, view_of_frame
from koordebpf.state.cpu.measured import MissingDirectory
from koordebpf.state.guard_facts import GuardFacts
from koordebpf.state.measured import MeasuredParts, NodeMeasure
from koordebpf.state.pods.facts import facts_of_pods, pod_facts
from koordebpf.state.pods.hook_pods import HooksMeasured, PodDirectory
from koordebpf.state.view import Frame
from koordebpf.strategies.cpu_suppress.values import SuppressMeasured
from koordebpf.strategies.system_config.values import SystemMeasured
from koordebpf.units import GIB, MIB
from tests.support.values.builders import frame, host_shm, memory_volume, pod


def test_every_pod_is_in_the_view_measured_or_not():
    view = view_of_frame(frame([pod("a", anon=4, growth=7.5), pod("b", measured=False), pod("c", has_cgroup=False)]))
    a, b, c = view.pods
    assert a.memory is not None
    assert (a.memory.koordinator_used_bytes, a.growth_bytes_per_s, a.key) == (4 * MIB, 7.5, "spark/a")
    assert a.cgroup_id is not None
    assert (b.cgroup_id, b.memory, c.cgroup_id, c.memory) == (None, None, None, None)


@pytest.mark.parametrize(
    ("scope", "status", "strict"),
    [
        ("machine", NodeStatus(capacity={"memory": "2Gi"}), 2 * GIB),
        ("machine", NodeStatus(capacity={"memory": "2097152Ki"}), 2 * GIB),
        ("machine", NodeStatus(capacity={"memory": 12}), 12),
        ("machine", NodeStatus(capacity={"memory": "0"}), 0),
        ("machine", NodeStatus(capacity={"cpu": "2"}), GIB),
        ("machine", NodeStatus(), GIB),
        ("cgroup", NodeStatus(capacity={"memory": "2Gi"}), GIB),
    ],
)
def test_what_the_percents_refer_to(scope, status, strict):
    measure = NodeMeasure(scope=scope, total_bytes=GIB, used_bytes=0)
    node = Node(metadata=ObjectMeta(name="n"), status=status)
    assert node_capacity_bytes(node, measure) == GIB
    assert node_capacity_bytes(node, measure, strict=True) == strict
    assert node_capacity_bytes(None, measure, strict=True) == GIB


def said_gib(scope: str, written: str | None, *, total: int, strict: bool = False) -> str | None:
    status = NodeStatus(capacity={"memory": written} if written else None)
    node = Node(metadata=ObjectMeta(name="n"), status=status)
    return capacity_doubt(node, NodeMeasure(scope=scope, total_bytes=total, used_bytes=0), strict=strict)


def test_a_node_that_disagrees_with_the_kernel_is_named_with_both_numbers():
    assert said_gib("machine", "16Gi", total=8 * GIB) == (
        "the kernel has 8.0 GiB (MemTotal), node.status.capacity.memory says 16.0 GiB: percents are of MemTotal; "
        "restart kubelet so that the scheduler knows too"
    )
    strict = said_gib("machine", "16Gi", total=32 * GIB, strict=True)
    assert strict is not None
    assert "percents are of node.status.capacity, as in Koordinator" in strict
    assert said_gib("machine", "100Mi", total=98 * MIB) is None  # 2 %
    assert said_gib("machine", "98Mi", total=100 * MIB) is None
    assert said_gib("machine", "1000Mi", total=979 * MIB) is not None
    assert said_gib("machine", None, total=8 * GIB) is None
    assert said_gib("machine", "16Gi", total=0) is None  # a guard is closed
    assert said_gib("cgroup", "16Gi", total=8 * GIB) is None
    assert capacity_doubt(None, NodeMeasure(scope="machine", total_bytes=GIB, used_bytes=0)) is None


def test_a_capacity_that_is_no_quantity():
    with pytest.raises(ConfigError, match=r"node\.status\.capacity\.memory: 'lots'"):
        view_of_frame(frame([], capacity="lots"))


@pytest.mark.parametrize(
    ("volume", "api", "cgroup"),
    [
        (memory_volume(), False, True),
        (host_shm(), True, True),
        (Volume(name="v", hostPath=HostPathVolumeSource(path="/dev/shm")), True, True),
        (Volume(name="v", hostPath=HostPathVolumeSource(path="/run/app")), True, True),
        (Volume(name="v", hostPath=HostPathVolumeSource(path="/runner")), False, False),
        (Volume(name="v", hostPath=HostPathVolumeSource(path="/var/lib/x")), False, False),
        (Volume(name="v"), False, False),
    ],
)
def test_which_tmpfs_outlives_an_eviction(volume, api, cgroup):
    facts = pod_facts(pod("p", volumes=[volume]).pod)
    assert (facts.keeps_tmpfs("api"), facts.keeps_tmpfs("cgroup")) == (api, cgroup)


def test_the_kubernetes_class_is_worked_out_where_the_status_lacks_it():
    both = {"cpu": "500m", "memory": "1Gi"}
    made = Pod(
        metadata=ObjectMeta(name="p", uid="u"),
        spec=PodSpec(containers=[Container(resources=ResourceRequirements(requests={"cpu": 0.5}, limits=both))]),
    )
    assert pod_facts(made).kube_qos == "Guaranteed"
    assert pod_facts(Pod(metadata=ObjectMeta(name="p", uid="u"))).kube_qos == "BestEffort"
    bad = msgspec.structs.replace(
        made, spec=PodSpec(containers=[Container(resources=ResourceRequirements({"cpu": "x"}))])
    )
    facts = pod_facts(bad)
    assert facts.terms.problem is not None
    assert "containers.resources.cpu: 'x'" in facts.terms.problem
    assert (facts.kube_qos, facts.terms.cpu_request_millicpu) == ("Burstable", 0)


def test_facts_of_unchanged_objects_are_kept():
    pods = [pod("a").pod, pod("b").pod]
    first = facts_of_pods(pods)
    changed = [pods[1], pod("a", phase="Failed").pod]
    second = facts_of_pods(changed, first)
    assert second[0] is first[1]
    assert (second[1] is first[0], second[1].phase) == (False, "Failed")


def test_a_configmap_serves_where_there_is_no_nodeslo():
    recorded = msgspec.structs.replace(
        frame([]),
        nodeSLO=msgspec.UNSET,
        sloControllerConfig={"resource-threshold-config": '{"clusterStrategy": {"memoryEvictThresholdPercent": 60}}'},
    )
    strategy = view_of_frame(recorded).strategy
    assert strategy is not None
    assert strategy.memoryEvictThresholdPercent == 60
    assert view_of_frame(msgspec.structs.replace(recorded, sloControllerConfig=None)).strategy is None
    nothing = msgspec.structs.replace(recorded, nodeSLO=msgspec.Raw(b"null"), sloControllerConfig=None)
    assert view_of_frame(decode_frame(encode_frame(nothing), "f")).strategy is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ((b'"schema":"koordebpf.frame/v3"', b'"schema":"koordebpf.frame/v9"'), "schema: 'koordebpf.frame/v9'"),
        (
            (b'"used_bytes":891289600', b'"used_bytes":"much"'),
            "measured.node.used_bytes: 'much': Expected `int | null`",
        ),
        ((b'"used_bytes":891289600', b'"used_bytes":-1'), "measured.node.used_bytes: -1: Expected `int` >= 0"),
        ((b'"measured":', b'"measure":'), "frame: "),
        ((b'"scope":', b'"socpe":'), "measured.node: "),
        ((b'"uid":"uid-spark-a","labels"', b'"uid":"","labels"'), "pods[0].metadata.uid: '': must not be empty"),
        (
            (b'"uid":"uid-spark-b","labels"', b'"uid":"uid-spark-a","labels"'),
            "pods[1].metadata.uid: 'uid-spark-a': must be unique",
        ),
        (
            (b'{"uid":"uid-spark-b","cgroup_id"', b'{"uid":"uid-spark-a","cgroup_id"'),
            "measured.pods[1].uid: 'uid-spark-a': must be unique",
        ),
    ],
)
def test_a_wrong_frame_names_file_place_value_and_rule(change, message):
    good = encode_frame(frame([pod("a"), pod("b")], used=850))
    bad = good.replace(*change)
    assert bad != good
    with pytest.raises(ConfigError) as caught:
        decode_frame(bad, "F.json")
    assert str(caught.value).startswith(f"F.json: {message}")


PARTS = {
    "systemConfig": SystemMeasured(SystemStrategy(minFreeKbytesFactor=100)),
    "runtimeHooks": HooksMeasured((PodDirectory("uid-spark-a", "kubepods/a", {"id": "kubepods/a/id"}),)),
}


def with_parts(found: Frame) -> Frame:
    return replace(found, measured=replace(found.measured, parts=MeasuredParts(PARTS)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            (b'"path":"kubepods/a"', b'"path":7'),
            "measured.parts.runtimeHooks.pods[0].path: 7: Expected `str`, got `int`",
        ),
        ((b'"systemConfig":{', b'"systemConfig":{"x":1,'), "measured.parts.systemConfig: "),
        ((b'"systemConfig":{', b'"another":{'), "measured.parts: "),
        ((b'"systemConfig":{', b'"systemConfig":[],"cpuBurst":{'), "measured.parts.systemConfig: "),
        ((b'"parts":{', b'"parts":[],"p":{'), "measured.parts: "),
    ],
)
def test_a_wrong_part_names_place_value_and_rule(change, message):
    good = encode_frame(with_parts(frame([pod("a")])))
    bad = good.replace(*change)
    assert bad != good
    with pytest.raises(ConfigError) as caught:
        decode_frame(bad, "F.json")
    assert str(caught.value).startswith(f"F.json: {message}")


def test_parts_are_values_of_their_types_and_those_of_v1_are_fields():
    made = with_parts(frame([pod("a")]))
    assert decode_frame(encode_frame(made), "f") == made
    plain = json.loads(encode_frame(made))
    parts = plain["measured"].pop("parts")
    plain["measured"] |= {"system": parts["systemConfig"], "hooks": parts["runtimeHooks"], "burst": None}
    was = msgspec.json.encode({**plain, "schema": "koordebpf.frame/v1"})
    assert decode_frame(was, "f").measured == made.measured


def test_a_round_of_v2_has_what_suppression_decides_from_in_places_of_its_own():
    made = frame([pod("a")])
    plain = json.loads(msgspec.json.encode(made)) | {"schema": "koordebpf.frame/v2", "suppression": {"quota": "using"}}
    settings = msgspec.to_builtins(TickSettings())
    was = {"frame": plain, "settings": settings | {"suppress": {"keep_s": 1.0}}, "woken_by": "a burst"}
    was["guards"] = msgspec.to_builtins(GuardFacts(now_ns=0, source="file", pods_synced_ns=None))
    found = decode_json(json.dumps(was).encode(), "f", TickFrame)
    assert found.states == {"suppress": {"quota": "using"}}
    assert found.settings.strategies.suppress.keep_s == 1
    assert found.frame.measured == made.measured.with_part("suppress", SuppressMeasured("a burst"))
    assert found.frame.states == {}


def test_unknown_fields_of_kubernetes_objects_are_skipped():
    good = encode_frame(frame([pod("a")], used=850))
    assert decode_frame(
        good.replace(b'"phase":"Running"', b'"phase":"Running","hostIP":"10.0.0.1"'), "f"
    ) == decode_frame(good, "f")


def test_the_schema_covers_the_frame():
    frame_properties = frame_schema()["$defs"]["Frame"]["properties"]
    assert {"schema", "measured", "pods", "node", "nodeSLO", "sloControllerConfig", "executor"} <= set(frame_properties)


def test_the_schema_covers_what_each_strategy_measures():
    definitions = frame_schema()["$defs"]
    parts = definitions["Measured"]["properties"]["parts"]["properties"]
    assert {"katalystEviction", "runtimeHooks", "cpuBurst"} < set(parts)
    assert {each["$ref"].rpartition("/")[2] for each in parts.values()} <= set(definitions)


def test_shared_memory_of_the_hosts_ipc_namespace_outlives_the_pod() -> None:
    its = Pod(metadata=ObjectMeta(name="p", uid="u"), spec=PodSpec(hostIPC=True))
    facts = pod_facts(its)
    assert facts.keeps_tmpfs("api")
    assert facts.keeps_tmpfs("cgroup")


def test_a_frame_of_the_first_release_names_directories_that_were_missing_by_its_own_key():
    recorded = (
        b'{"schema":"koordebpf.frame/v1","measured":{"now_ns":2,"since_ns":1,"node":{"scope":"machine",'
        b'"total_bytes":1024,"used_bytes":1},"cpu":{"topology":{"online":[]},'
        b'"be_lacking":[{"controller":"cpuset","path":"/sys/fs/cgroup/cpuset/kubepods/besteffort"}]}}}'
    )
    found = decode_frame(recorded, "an old frame")
    assert found.measured.cpu is not None
    missing = MissingDirectory("cpuset", "/sys/fs/cgroup/cpuset/kubepods/besteffort")
    assert found.measured.cpu.be_missing == (missing,)
    assert b'"be_lacking":[{"controller":"cpuset"' in encode_frame(found)
    assert decode_frame(encode_frame(found), "a new frame") == found
