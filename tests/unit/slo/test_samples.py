"""Settings in the structure of Koordinator's manuals, charts and controllers, in numbers of our own: all is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from koordebpf.cli.slo import slo
from koordebpf.kube.sources.manifest import parse_manifests
from koordebpf.slo.manager.shapes import unknown_in_nodeslo
from koordebpf.slo.nodeslo import parse_nodeslo
from koordebpf.slo.strategies.cpu_burst import CPUBurstStrategy
from koordebpf.state.pods.facts import pod_facts
from koordebpf.strategies.cpu_burst.values import pod_cpu_burst
from koordebpf.strategies.memory_qos.values import pod_memory_qos

BIG = {"matchLabels": {"pool": "big"}}
# One sample of each key, with a cluster's values and a pool's.
SAMPLES: dict[str, dict[str, Any]] = {
    "resource-threshold-config": {
        "clusterStrategy": {
            "enable": True,
            "cpuSuppressThresholdPercent": 61,
            "cpuSuppressPolicy": "cfsQuota",
            "memoryEvictThresholdPercent": 71,
            "memoryEvictLowerPercent": 66,
            "cpuEvictTimeWindowSeconds": 61,
            "cpuEvictBESatisfactionLowerPercent": 31,
            "cpuEvictBESatisfactionUpperPercent": 41,
            "cpuEvictBEUsageThresholdPercent": 81,
        },
        "nodeStrategies": [
            {
                "name": "big",
                "nodeSelector": BIG,
                "cpuSuppressThresholdPercent": 62,
                "cpuEvictPolicy": "evictByRealLimit",
            },
        ],
    },
    "resource-qos-config": {
        "clusterStrategy": {
            "policies": {"cpuPolicy": "groupIdentity"},
            "lsrClass": {
                "cpuQOS": {"enable": True, "groupIdentity": 2},
                "memoryQOS": {"enable": True, "minLimitPercent": 90, "lowLimitPercent": 0, "throttlingPercent": 0},
                "resctrlQOS": {"enable": True, "catRangeStartPercent": 0, "catRangeEndPercent": 100, "mbaPercent": 100},
            },
            "lsClass": {
                "cpuQOS": {"enable": True, "groupIdentity": 2},
                "memoryQOS": {"enable": True, "wmarkRatio": 94, "wmarkScalePermill": 51, "wmarkMinAdj": -24},
                "blkioQOS": {
                    "enable": True,
                    "blocks": [{"name": "/dev/vda", "type": "device", "ioCfg": {}}],
                },
            },
            "beClass": {
                "cpuQOS": {"enable": True, "groupIdentity": -1, "coreExpeller": False},
                "memoryQOS": {"enable": True, "priorityEnable": 1, "priority": 0, "oomKillGroup": 1},
                "resctrlQOS": {"enable": True, "catRangeStartPercent": 0, "catRangeEndPercent": 31, "mbaPercent": 90},
                "blkioQOS": {
                    "enable": True,
                    "blocks": [{"name": "vg0-data", "type": "volumegroup", "ioCfg": {"readBPS": 1048577}}],
                },
            },
        },
        "nodeStrategies": [{"name": "big", "nodeSelector": BIG, "beClass": {"memoryQOS": {"wmarkRatio": 81}}}],
    },
    "cpu-burst-config": {
        "clusterStrategy": {
            "policy": "auto",
            "cpuBurstPercent": 999,
            "cfsQuotaBurstPercent": 301,
            "cfsQuotaBurstPeriodSeconds": -1,
            "sharePoolThresholdPercent": 51,
        },
        "nodeStrategies": [{"name": "big", "nodeSelector": BIG, "policy": "cfsQuotaBurstOnly"}],
    },
    "system-config": {
        "clusterStrategy": {"minFreeKbytesFactor": 101, "watermarkScaleFactor": 151, "memcgReapBackGround": 0},
        "nodeStrategies": [{"name": "big", "nodeSelector": BIG, "minFreeKbytesFactor": 121}],
    },
    "colocation-config": {
        "enable": True,
        "metricAggregateDurationSeconds": 301,
        "cpuReclaimThresholdPercent": 61,
        "memoryReclaimThresholdPercent": 66,
        "memoryCalculatePolicy": "usage",
        "degradeTimeMinutes": 16,
        "updateTimeThresholdSeconds": 301,
        "resourceDiffThreshold": 0.11,
        "nodeConfigs": [{"name": "big", "nodeSelector": BIG, "cpuReclaimThresholdPercent": 71}],
    },
    "host-application-config": {
        "applications": [
            {
                "name": "proxy",
                "priority": "koord-prod",
                "qos": "LS",
                "cgroupPath": {"base": "CgroupRoot", "parentDir": "host-latency-sensitive/", "relativePath": "proxy/"},
            },
        ],
    },
    "cpu-normalization-config": {
        "enable": True,
        "ratioModel": {"a CPU": {"baseRatio": 1.4, "hyperThreadEnabledRatio": 1.1, "turboEnabledRatio": 1.6}},
        "nodeConfigs": [{"name": "big", "nodeSelector": BIG, "enable": False}],
    },
}


def config_map(folder: Path) -> Path:
    path = folder / "cm.json"
    meta = {"name": "slo-controller-config", "namespace": "koordinator-system"}
    data = {key: json.dumps(each, indent=2) for key, each in SAMPLES.items()}
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}))
    return path


def test_nothing_is_wrong_with_them_and_no_field_is_unread(tmp_path: Path) -> None:
    done = CliRunner().invoke(slo, ["check", "--strict", str(config_map(tmp_path))])
    assert (done.exit_code, done.output.partition(": ")[2]) == (0, f"nothing wrong in {len(SAMPLES)} keys\n")


@pytest.mark.parametrize(
    ("pool", "expected"),
    [("small", (61, "auto", 101, "device")), ("big", (62, "cfsQuotaBurstOnly", 121, "device"))],
)
def test_a_node_gets_its_pools_values_over_those_of_all(
    tmp_path: Path, pool: str, expected: tuple[int, str, int, str]
) -> None:
    node = tmp_path / "node.json"
    meta = {"name": "n", "labels": {"pool": pool}}
    node.write_text(json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": meta}))
    done = CliRunner().invoke(slo, ["render", "--node", str(node), str(config_map(tmp_path))], catch_exceptions=False)
    spec = json.loads(done.output)
    block = spec["resourceQOSStrategy"]["lsClass"]["blkioQOS"]["blocks"][0]
    assert (
        spec["resourceUsedThresholdWithBE"]["cpuSuppressThresholdPercent"],
        spec["cpuBurstStrategy"]["policy"],
        spec["systemStrategy"]["minFreeKbytesFactor"],
        block["type"],
    ) == expected
    assert spec["resourceUsedThresholdWithBE"]["memoryEvictThresholdPercent"] == 71
    assert spec["hostApplications"][0]["cgroupPath"]["relativePath"] == "proxy/"


def test_a_nodeslo_as_the_controller_writes_it_is_read_whole() -> None:
    # A field of a Go type without a tag, and lists that are null.
    written = {
        "spec": {
            "resourceUsedThresholdWithBE": {"enable": True, "memoryEvictThresholdPercent": 72},
            "extensions": {"Object": None},
            "hostApplications": None,
        },
        "status": {},
    }
    raw = json.dumps(written).encode()
    assert parse_nodeslo(raw).memoryEvictThresholdPercent == 72
    assert unknown_in_nodeslo(msgspec.Raw(raw)) == ()


def test_pods_of_manuals_are_read_with_what_they_ask_for_and_leave_empty() -> None:
    # `nodeName:` to be filled in by the reader, and annotations in JSON of several lines.
    text = b"""
apiVersion: v1
kind: Pod
metadata:
  name: cache
  namespace: shop
  uid: cache-1
  creationTimestamp:
  labels: {koordinator.sh/qosClass: LS}
  annotations:
    koordinator.sh/cpuBurst: '{"policy": "auto", "cpuBurstPercent": 998}'
    koordinator.sh/memoryQOS: |
      {
        "policy": "auto"
      }
spec:
  nodeName: # where it is to run
  containers:
  - name: cache
    image: cache
    resources: {limits: {cpu: "2", memory: 1Gi}, requests: {cpu: "1", memory: 1Gi}}
  restartPolicy: Always
"""
    found = parse_manifests({"pod.yaml": text})
    assert found.bad == ()
    (pod,) = found.pods
    facts = pod_facts(pod)
    assert (facts.koord_qos, facts.namespace, facts.name) == ("LS", "shop", "cache")
    annotations = pod.metadata.annotations or {}
    burst, problem = pod_cpu_burst(CPUBurstStrategy(), annotations)
    assert (burst.policy, burst.cpuBurstPercent, problem) == ("auto", 998, None)
    qos = pod_memory_qos(annotations)
    assert qos is not None and qos.policy == "auto"
