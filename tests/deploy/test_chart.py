"""The Helm chart against what kustomize builds: the same objects, for the values that stand for an overlay."""

from __future__ import annotations

import copy
import itertools
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.programs import helm
from tests.deploy.rendered import (
    CHART,
    DEPLOY,
    NAMESPACE,
    CannotRender,
    Object,
    built,
    by_name,
    overlay_with,
    pod_specs,
    templated,
)

ROOT = DEPLOY.parent
CHECKSUM = "checksum/config"
LINUX = {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}  # what the image is for
# An overlay with components, and the values for it.
SAME: dict[str, tuple[str, Sequence[str], Mapping[str, Any]]] = {
    "observe": ("observe", (), {}),
    "enforce": ("enforce", (), {"enforce": {"enabled": True}}),
    "beside Koordinator": ("observe", ["beside-koordinator"], {"besideKoordinator": True}),
    "nodes are marked": ("enforce", ["node-mark"], {"enforce": {"enabled": True}, "agent": {"nodeMark": True}}),
    "Katalyst's plugins": (
        "enforce",
        ["katalyst"],
        {"enforce": {"enabled": True}, "agent": {"katalyst": True}},
    ),
    "Katalyst's plugins, watched": ("observe", ["katalyst"], {"agent": {"katalyst": True}}),
    "in koordlet's place": (
        "enforce",
        ["instead-of-koordlet"],
        {"enforce": {"enabled": True}, "agent": {"insteadOfKoordlet": True}},
    ),
    "batch resources": ("observe", ["batch-resources"], {"controller": {"batchResources": True}}),
    "exemptions by label": ("observe", ["namespace-labels"], {"agent": {"namespaceLabels": True}}),
    "agents that delete": (
        "enforce",
        ["pod-deletion"],
        {"enforce": {"enabled": True}, "agent": {"podDeletion": True}},
    ),
    "on their own node only": (
        "enforce",
        ["node-mark", "own-node-only"],
        {"enforce": {"enabled": True}, "agent": {"nodeMark": True, "ownNodeOnly": True}},
    ),
    "containerd stops containers": (
        "enforce",
        ["cri"],
        {"enforce": {"enabled": True}, "agent": {"criDirectory": "/run/containerd"}},
    ),
    "CRI-O stops containers": (
        "enforce",
        ["cri-o"],
        {"enforce": {"enabled": True}, "agent": {"criDirectory": "/run/crio"}},
    ),
    "containers before they start": ("observe", ["nri"], {"agent": {"nri": True}}),
    "kubelet keeps CPUs back": ("observe", ["kubelet-state"], {"agent": {"kubeletState": True}}),
    "layers of containers": ("observe", ["layers"], {"agent": {"layers": True}}),
    "scores of processes": (
        "enforce",
        ["oom-score-adj"],
        {"enforce": {"enabled": True}, "agent": {"oomScoreAdj": True}},
    ),
    "cores of their own": ("enforce", ["core-sched"], {"enforce": {"enabled": True}, "agent": {"coreSched": True}}),
    "all that reach processes": (
        "enforce",
        ["oom-score-adj", "core-sched", "host-processes"],
        {"enforce": {"enabled": True}, "agent": {"oomScoreAdj": True, "coreSched": True, "hostProcesses": True}},
    ),
    "agents that kill": (
        "enforce",
        ["host-processes"],
        {"enforce": {"enabled": True}, "agent": {"hostProcesses": True}},
    ),
    "privileged": ("observe", ["privileged"], {"agent": {"privileged": True}}),
    "people who look": ("observe", ["readers"], {"readers": True}),
    "with the Prometheus operator": ("observe", ["prometheus-operator"], {"prometheusOperator": {"enabled": True}}),
    "everything": (
        "enforce",
        [
            "beside-koordinator",
            "batch-resources",
            "node-mark",
            "katalyst",
            "instead-of-koordlet",
            "namespace-labels",
            "pod-deletion",
            "own-node-only",
            "cri",
            "nri",
            "kubelet-state",
            "layers",
            "oom-score-adj",
            "core-sched",
            "host-processes",
            "privileged",
            "prometheus-operator",
            "readers",
        ],
        {
            "enforce": {"enabled": True},
            "besideKoordinator": True,
            "controller": {"batchResources": True},
            "agent": {
                "nodeMark": True,
                "katalyst": True,
                "insteadOfKoordlet": True,
                "namespaceLabels": True,
                "podDeletion": True,
                "ownNodeOnly": True,
                "criDirectory": "/run/containerd",
                "nri": True,
                "kubeletState": True,
                "layers": True,
                "oomScoreAdj": True,
                "coreSched": True,
                "hostProcesses": True,
                "privileged": True,
            },
            "prometheusOperator": {"enabled": True},
            "readers": True,
        },
    ),
}


def neutral(objects: Sequence[Object]) -> dict[tuple[str, str], Object]:
    """The objects without what tells only by which of the two they were made.

    kustomize ends a ConfigMap's name with a hash of it, Helm has one as an annotation of the pods: each rolls them.
    Helm keeps a release in its namespace, which therefore is there before it.
    """
    neutral = copy.deepcopy([one for one in objects if one["kind"] != "Namespace"])
    hashed = {one["metadata"]["name"] for one in neutral if one["kind"] == "ConfigMap"}
    for one in neutral:
        if one["kind"] == "ConfigMap":
            one["metadata"]["name"] = unhashed(one["metadata"]["name"])
        if one["kind"] == "DaemonSet":
            one["spec"]["template"]["metadata"]["annotations"].pop(CHECKSUM, None)
            for volume in one["spec"]["template"]["spec"]["volumes"]:
                if "configMap" in volume:
                    assert volume["configMap"]["name"] in hashed
                    volume["configMap"]["name"] = unhashed(volume["configMap"]["name"])
    return by_name(neutral)


# kustomize's hash is of letters and digits without vowels, 0, 1 and 3.
def unhashed(name: str) -> str:
    return re.sub(r"-[24-9bcdfghkmt]{10}$", "", name)


def config_of(objects: Sequence[Object], mode: str = "") -> Any:
    maps = {one["metadata"]["name"]: one["data"]["config.yaml"] for one in objects if one["kind"] == "ConfigMap"}
    return yaml.safe_load(maps[f"koordebpf-agent{mode}"])


@pytest.mark.parametrize("case", SAME)
def test_it_is_what_kustomize_builds(case: str, tmp_path: Path) -> None:
    overlay, components, values = SAME[case]
    whole = built(overlay_with(tmp_path, overlay, components))
    assert {one["metadata"]["name"] for one in whole if one["kind"] == "Namespace"} == {NAMESPACE}
    assert neutral(templated(values)) == neutral(whole)


def test_every_component_has_values() -> None:
    compared = {name for _, components, _ in SAME.values() for name in components}
    assert compared == {path.name for path in (DEPLOY / "components").iterdir()}


def test_a_package_has_what_it_is_made_of(tmp_path: Path) -> None:
    subprocess.run([helm(), "package", CHART, "-d", tmp_path], check=True, capture_output=True)
    (package,) = tmp_path.iterdir()
    values = {"enforce": {"enabled": True}, "prometheusOperator": {"enabled": True}}
    assert templated(values, chart=package) == templated(values)
    with tarfile.open(package) as files:
        names = {name.split("/")[1] for name in files.getnames()}
    assert names == {
        ".helmignore",
        "Chart.yaml",
        "base",
        "bootstrap",
        "components",
        "templates",
        "values.schema.json",
        "values.yaml",
    }


def test_a_copy_without_what_it_is_made_of_is_refused(tmp_path: Path) -> None:
    shutil.copytree(CHART, tmp_path / "chart", ignore=shutil.ignore_patterns("base"))
    with pytest.raises(CannotRender, match="was the chart copied without base/ and components/"):
        templated(chart=tmp_path / "chart")


def test_helm_finds_nothing_to_complain_of() -> None:
    done = subprocess.run([helm(), "lint", "--strict", CHART], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    # An icon is a picture on the Internet.
    assert re.findall(r"\[(?:INFO|WARNING|ERROR)\] (.*)", done.stdout) == ["Chart.yaml: icon is recommended"]


def test_versions_are_those_of_the_package() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {chart["version"], chart["appVersion"]} == {project["version"]}


class TestValues:
    def test_each_is_in_the_schema(self) -> None:
        values = yaml.safe_load((CHART / "values.yaml").read_text())
        schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
        assert values.keys() == schema.keys() - {"global"}
        for name, value in values.items():
            if isinstance(value, dict):
                assert value.keys() == schema[name]["properties"].keys(), name

    def test_each_has_a_reason(self) -> None:
        lines = (CHART / "values.yaml").read_text().splitlines()
        without = [
            line
            for before, line in itertools.pairwise(lines)
            if re.match(r"(  \w+:|\w+: \S)", line) and not before.strip().startswith("# ")
        ]
        assert without == []

    @pytest.mark.parametrize(
        ("values", "said"),
        [
            ({"enforced": {"enabled": True}}, "enforced"),
            ({"enforce": {"enabled": "yes"}}, "boolean"),
            # An agent without a node selector would act everywhere.
            ({"enforce": {"enabled": True, "nodeSelector": {"koordebpf.io/mode": None}}}, "enforce.nodeSelector"),
            ({"agent": {"resources": {"limit": {"memory": "1Gi"}}}}, "limit"),
            ({"agent": {"config": {"executor": {"typ": "cgroup"}}}}, "config.executor.typ: no such setting"),
            ({"image": {"repository": ""}}, "repository"),
            ({"image": {"architecture": "x86_64"}}, "image.architecture"),
            ({"controller": {"replicas": 0}}, "replicas"),
        ],
    )
    def test_wrong_ones_are_refused(self, values: Mapping[str, Any], said: str) -> None:
        with pytest.raises(CannotRender) as refused:
            templated(values)
        assert said.replace(".", "/") in str(refused.value) or said in str(refused.value)

    def test_settings_go_over_those_of_the_file(self) -> None:
        given = {
            "agent": {"config": {"lockMemory": False, "guards": {"evictionsPerMinute": 3}}},
            "enforce": {"enabled": True, "config": {"executor": {"killAfter": "30s"}}},
        }
        objects = templated(given)
        whole = yaml.safe_load((DEPLOY / "base/agent/config.yaml").read_text())
        whole["lockMemory"] = False
        whole["guards"]["evictionsPerMinute"] = 3
        assert config_of(objects) == whole
        whole["executor"]["killAfter"] = "30s"
        assert config_of(objects, "-enforce") == whole

    def test_another_name_of_the_configmap_is_that_of_agents_controller_and_rights(self) -> None:
        def named(objects: list[dict[str, Any]]) -> list[str]:
            rules = [rule for one in objects for rule in one.get("rules") or () if "configmaps" in rule["resources"]]
            return [name for rule in rules for name in rule["resourceNames"]]

        assert named(templated({})) == ["slo-controller-config"] * 2
        names = {"name": "ack-slo-config", "namespace": "kube-system"}
        objects = templated({"agent": {"config": {"slo": {"configMap": names}}}})
        assert named(objects) == ["ack-slo-config"] * 2
        assert config_of(objects)["slo"]["configMap"] == names
        (controller,) = [one for one in objects if one["kind"] == "Deployment"]
        (container,) = controller["spec"]["template"]["spec"]["containers"]
        assert container["args"][-1] == "--config-map=kube-system/ack-slo-config"

    def test_settings_that_were_changed_are_right_for_the_agent(self, tmp_path: Path) -> None:
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(config_of(templated({"agent": {"config": {"lockMemory": False}}}))))
        check = [sys.executable, "-m", "koordebpf", "config", "check", str(path)]
        done = subprocess.run(check, capture_output=True, text=True, check=False, cwd=ROOT)
        assert (done.returncode, done.stderr) == (0, "")

    def test_a_setting_rolls_the_agents(self) -> None:
        sums = []
        for config in ({}, {"lockMemory": False}):
            objects = templated({"agent": {"config": config}})
            (daemonset,) = [one for one in objects if one["kind"] == "DaemonSet"]
            sums.append(daemonset["spec"]["template"]["metadata"]["annotations"][CHECKSUM])
        assert len(set(sums)) == 2

    def test_a_pool_of_several_labels_leaves_no_node_out_and_none_twice(self) -> None:
        pool = {"pool": "batch", "zone": "a"}
        given = {"enforce": {"enabled": True, "nodeSelector": pool}}
        # Helm adds what is given to a map to what is there: the label by default is taken away by null.
        given["enforce"]["nodeSelector"] = {**pool, "koordebpf.io/mode": None}
        specs = pod_specs(templated(given))
        affinity = specs["koordebpf-agent"]["affinity"]["nodeAffinity"]
        terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert specs["koordebpf-agent-enforce"]["nodeSelector"] == pool | LINUX
        for labels in ({}, {"pool": "batch"}, {"zone": "a"}, {"pool": "x", "zone": "a"}, pool):
            is_acting = pool.items() <= labels.items()
            is_watched = any(matches(term, labels) for term in terms)
            assert is_acting is not is_watched, labels

    def test_agents_stay_on_the_nodes_that_are_wanted(self) -> None:
        specs = pod_specs(templated({"agent": {"nodeSelector": {"pool": "a"}}, "enforce": {"enabled": True}}))
        wanted = {**LINUX, "pool": "a"}
        assert specs["koordebpf-agent"]["nodeSelector"] == wanted
        assert specs["koordebpf-agent-enforce"]["nodeSelector"] == wanted | {"koordebpf.io/mode": "enforce"}

    def test_the_image_is_what_is_said(self) -> None:
        image = {"repository": "r.example/k", "tag": "7", "pullPolicy": "Always", "pullSecrets": [{"name": "s"}]}
        for spec in pod_specs(templated({"image": image, "enforce": {"enabled": True}})).values():
            assert spec["containers"][0]["image"] == "r.example/k:7"
            assert spec["containers"][0]["imagePullPolicy"] == "Always"
            assert spec["imagePullSecrets"] == [{"name": "s"}]

    @pytest.mark.parametrize("architecture", ["arm64", ""])
    def test_an_image_of_another_architecture_is_for_its_nodes(self, architecture: str) -> None:
        given = {"image": {"architecture": architecture}, "enforce": {"enabled": True}}
        wanted = {"kubernetes.io/arch": architecture} if architecture else {}
        specs = pod_specs(templated(given))
        assert len(specs) == 3
        for spec in specs.values():
            of_every_node = {key: value for key, value in spec["nodeSelector"].items() if "koordebpf" not in key}
            assert of_every_node == {"kubernetes.io/os": "linux", **wanted}

    def test_values_of_an_older_chart_keep_agents_on_the_nodes_of_the_image(self) -> None:
        """As `helm upgrade --reuse-values` gives them: null takes a value away."""
        specs = pod_specs(templated({"image": {"architecture": None}, "enforce": {"enabled": True}}))
        assert len(specs) == 3
        for spec in specs.values():
            assert spec["nodeSelector"].items() >= LINUX.items()

    def test_the_image_is_pinned_by_a_digest_that_is_given(self) -> None:
        image = {"repository": "r.example/k", "digest": f"sha256:{'0' * 64}"}
        specs = pod_specs(templated({"image": image, "enforce": {"enabled": True}}))
        version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
        wanted = f"r.example/k:{version}@sha256:{'0' * 64}"
        assert {spec["containers"][0]["image"] for spec in specs.values()} == {wanted}

    def test_resources_and_replicas_are_those_that_are_given(self) -> None:
        given = {"limits": {"memory": "1Gi"}}
        objects = templated({"agent": {"resources": given}, "controller": {"resources": given, "replicas": 3}})
        assert [spec["containers"][0]["resources"] for spec in pod_specs(objects).values()] == [given, given]
        assert by_name(objects)["Deployment", "koordebpf-controller"]["spec"]["replicas"] == 3

    def test_without_the_controller_its_account_is_not_there(self) -> None:
        whole = set(by_name(templated()))
        assert {name for _, name in whole - set(by_name(templated({"controller": {"enabled": False}})))} == {
            "koordebpf-controller"
        }

    def test_the_network_policy_is_widened_and_narrowed(self) -> None:
        peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
        given = {"networkPolicy": {"apiServerPorts": [7443], "scrapers": [peer]}}
        policy = by_name(templated(given))["NetworkPolicy", "koordebpf"]["spec"]
        assert policy["ingress"][0]["from"] == [peer]
        assert policy["egress"][0]["ports"][-1] == {"port": 7443}
        assert ("NetworkPolicy", "koordebpf") not in by_name(templated({"networkPolicy": {"enabled": False}}))

    def test_an_older_cluster_has_the_annotation_in_place_of_the_field_and_no_policies(self) -> None:
        given = {"agent": {"hostProcesses": True, "privileged": False}}
        template = by_name(templated(given, "--kube-version", "1.29.0"))["DaemonSet", "koordebpf-agent"]["spec"][
            "template"
        ]
        profile = {"container.apparmor.security.beta.kubernetes.io/agent": "unconfined"}
        assert profile.items() <= template["metadata"]["annotations"].items()
        assert "appArmorProfile" not in template["spec"]["containers"][0]["securityContext"]
        with pytest.raises(CannotRender, match=r"agent\.ownNodeOnly needs Kubernetes 1\.30"):
            templated({"agent": {"ownNodeOnly": True}}, "--kube-version", "1.29.0")

    def test_labels_by_which_the_operator_chooses(self) -> None:
        given = {"prometheusOperator": {"enabled": True, "labels": {"release": "prometheus"}}}
        for kind in ("PodMonitor", "PrometheusRule"):
            labels = by_name(templated(given))[kind, "koordebpf"]["metadata"]["labels"]
            assert labels == {"release": "prometheus", "app.kubernetes.io/name": "koordebpf"}

    def test_everything_is_in_the_namespace_of_the_release(self) -> None:
        text = yaml.safe_dump_all(templated({"enforce": {"enabled": True}}, "--namespace", "elsewhere"))
        assert NAMESPACE not in text
        assert text.count("namespace: elsewhere") > 10


def matches(term: Object, labels: Mapping[str, str]) -> bool:
    """Tell whether a node with these labels is one of a nodeSelectorTerm of NotIn."""
    assert {each["operator"] for each in term["matchExpressions"]} == {"NotIn"}
    return all(labels.get(each["key"]) not in each["values"] for each in term["matchExpressions"])


class TestNotes:
    """What helm says after an installation, as a template of a copy: helm itself shows it with a cluster only."""

    def notes(self, tmp_path: Path, values: Mapping[str, Any]) -> str:
        chart = shutil.copytree(CHART, tmp_path / "chart", dirs_exist_ok=True)
        (chart / "templates/NOTES.txt").rename(chart / "base/NOTES.txt")
        template = 'kind: Notes\nmetadata: {name: notes}\ntext: {{ tpl (.Files.Get "base/NOTES.txt") . | quote }}\n'
        (chart / "templates/notes.yaml").write_text(template)
        return str(by_name(templated(values, chart=chart))["Notes", "notes"]["text"])

    def test_they_say_what_to_look_at_and_how_to_continue(self, tmp_path: Path) -> None:
        text = self.notes(tmp_path, {})
        assert text.startswith("koordebpf watches every node and evicts no pod.")
        assert "logs ds/koordebpf-agent" in text
        assert "get nodeslo" in text
        assert "apply --server-side -k CHART/bootstrap" in text
        assert "--set enforce.enabled=true" in text

    def test_they_say_where_it_acts_and_how_to_roll_back(self, tmp_path: Path) -> None:
        text = self.notes(tmp_path, {"enforce": {"enabled": True}, "besideKoordinator": True})
        assert text.startswith("koordebpf watches every node and acts on those with koordebpf.io/mode=enforce.")
        assert "kubectl label node NODE koordebpf.io/mode-" in text
        assert "get nodeslo" not in text
        assert "enforce.enabled" not in text
        assert "koordebpf.io/eviction" not in text
        bounded = self.notes(tmp_path, {"enforce": {"enabled": True}, "agent": {"ownNodeOnly": True}})
        assert "kubectl label namespace NAMESPACE koordebpf.io/eviction=own-node" in bounded
