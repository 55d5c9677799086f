"""What others own or share with koordebpf, through everything that an operator does: nothing changes or is deleted.

deploy/README.md, "Whose objects are whose". A real API server without nodes, with the definitions of Koordinator.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.api import Object
from tests.cluster.binaries import Binaries, say_line
from tests.cluster.control_plane import control_plane
from tests.cluster.documented import commands
from tests.cluster.installation import Operator
from tests.cluster.koordinator_programs import koordinator_objects
from tests.cluster.test_manifests import COMPONENTS
from tests.contract.apiserver import until
from tests.deploy.programs import operator_definitions
from tests.deploy.rendered import CHART, overlay_with

pytestmark = pytest.mark.slow  # helm upgrades a release once for each value

SHARED_NAMESPACE = "koordinator-system"
ORDERS = ["koordebpf first", "Koordinator first"]
BOOTSTRAP = ("apply", "--server-side", "-k", "deploy/bootstrap")
# Another value than that of values.yaml for each, as --set takes it.
VALUES = {
    "image.repository": "r.example/k",
    "image.tag": "v7",
    "image.architecture": "arm64",
    "image.digest": f"sha256:{'0' * 64}",
    "image.pullPolicy": "Always",
    "image.pullSecrets": "[0].name=registry",
    "agent.config": ".lockMemory=false",
    "agent.nodeSelector": ".pool=a",
    "agent.resources": ".limits.memory=1Gi",
    "agent.criDirectory": "/run/containerd",
    "enforce.nodeSelector": ".pool=a",
    "enforce.config": ".lockMemory=false",
    "controller.enabled": "false",
    "controller.replicas": "3",
    "controller.nodeSelector": ".pool=a",
    "controller.resources": ".limits.memory=1Gi",
    "networkPolicy.enabled": "false",
    "networkPolicy.apiServerPorts": "[0]=7443",
    "networkPolicy.scrapers": "[0].podSelector.matchLabels.app=prometheus",
    "prometheusOperator.labels": ".release=prometheus",
}


def leaves(values: Object, at: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of each setting of values.yaml; labels that it has by default are one."""
    for name, value in values.items():
        path = f"{at}{name}"
        if isinstance(value, dict) and value and not path.endswith("nodeSelector"):
            yield from leaves(value, f"{path}.")
        else:
            yield path, value


def changes() -> list[str]:
    """Return what `helm --set` takes, for each value another one."""
    found = []
    for path, value in leaves(yaml.safe_load((CHART / "values.yaml").read_text())):
        given = VALUES.get(path) or ("true" if value is False else None)
        assert given is not None, f"values.yaml: {path} is new: add another value of it to VALUES"
        found.append(f"{path}{given}" if given[0] in ".[" else f"{path}={given}")
    return found


def of_koordinator() -> list[Object]:
    """Return the definitions that Koordinator installs, and its namespace as its own manifest has it."""
    labels = {"control-plane": "koordinator"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SHARED_NAMESPACE, "labels": labels}}
    return [namespace, *koordinator_objects("crd/bases", say_line)]


def in_use() -> list[Object]:
    """Return what else lives there: objects of the shared definitions, a program in the shared namespace."""
    slo = {"apiVersion": "slo.koordinator.sh/v1alpha1"}
    namespaced = {"name": "koord-manager", "namespace": SHARED_NAMESPACE}
    container = {"name": "manager", "image": "r.example/koord-manager:v1.8.0"}
    pods = {"metadata": {"labels": {"app": "m"}}, "spec": {"containers": [container]}}
    threshold = {"resourceUsedThresholdWithBE": {"enable": True, "memoryEvictThresholdPercent": 70}}
    collect = {"metricCollectPolicy": {"aggregateDurationSeconds": 300}}
    return [
        *({**slo, "kind": "NodeSLO", "metadata": {"name": f"n{at}"}, "spec": threshold} for at in range(3)),
        *({**slo, "kind": "NodeMetric", "metadata": {"name": f"n{at}"}, "spec": collect} for at in range(3)),
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": namespaced,
            "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "m"}}, "template": pods},
        },
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {**namespaced, "name": "slo-controller-config"},
            "data": {"resource-threshold-config": '{"clusterStrategy": {"enable": true}}'},
        },
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": namespaced},
    ]


class Cluster:
    """A cluster with an operator, and what others have in it."""

    def __init__(self, operator: Operator, order: str) -> None:
        self.operator = operator
        self.kubectl, self.helm = operator.kubectl, operator.helm
        definitions = [operator_definitions()[kind] for kind in ("PodMonitor", "PrometheusRule")]
        self.apply_given(definitions)
        if order == "Koordinator first":
            self.apply_given(of_koordinator())
        else:
            # Twice: of a namespace without fields of its own the second apply writes an entry of managedFields.
            self.kubectl(*BOOTSTRAP)
            self.kubectl(*BOOTSTRAP)
        self.kubectl("wait", "--for=condition=Established", "crd", "--all")
        self.apply_given(in_use())
        self.kubectl("apply", "--server-side", "-f", "deploy/base/namespace.yaml")
        self.settle()

    def apply_given(self, objects: Sequence[Object], *options: str) -> None:
        """Apply objects as another field manager than koordebpf's operator is."""
        other = ("apply", "--server-side", "--field-manager=koordinator", *options, "-f", "-")
        self.kubectl(*other, given=yaml.safe_dump_all(objects))

    def check(self, after: str) -> None:
        """Fail unless every object of others is as before, managed fields and resource version among it."""
        found = self.operator.of_others()
        assert sorted(self.before.keys() - found.keys()) == [], f"{after}: deleted"
        assert sorted(found.keys() - self.before.keys()) == [], f"{after}: created"
        assert [name for name, each in found.items() if each != self.before[name]] == [], f"{after}: changed"

    def settle(self) -> None:
        """Take what is there now for what has to stay, once no controller of the cluster changes it any more."""

        def is_quiet() -> bool:
            self.before = self.operator.of_others()
            deployments = [each for name, each in self.before.items() if name.startswith("Deployment/")]
            return all(each.get("status") for each in deployments) and self.before == self.operator.of_others()

        until(is_quiet, "nothing changes by itself any more", 60)


@pytest.fixture(scope="module", params=ORDERS)
def cluster(
    request: pytest.FixtureRequest, binaries: Binaries, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with control_plane(binaries.kubernetes) as plane:
        made = Cluster(Operator(plane, binaries, tmp_path_factory.mktemp("helm")), request.param)
        assert sum(name.startswith("NodeSLO/") for name in made.before) == 3
        assert sum(name.startswith("CustomResourceDefinition/") for name in made.before) >= 4
        yield made


def test_no_value_of_a_release_changes_them(cluster: Cluster) -> None:
    cluster.helm("install", "koordebpf", "deploy")
    cluster.check("install")
    given = changes()
    for value in given:
        cluster.helm("upgrade", "koordebpf", "deploy", "--reset-values", "--set", value)
        cluster.check(f"--set {value}")
        cluster.helm("rollback", "koordebpf")
        cluster.check(f"--set {value} and rollback")
    cluster.helm("upgrade", "koordebpf", "deploy", "--reset-values", *(f"--set={value}" for value in given))
    cluster.check("every value")
    cluster.helm("uninstall", "koordebpf", "--wait")
    cluster.check("uninstall")
    assert cluster.operator.ours() == []


def test_a_release_of_another_name_is_installed_after_the_first(cluster: Cluster) -> None:
    for name in ("first", "second"):
        cluster.helm("install", name, "deploy", "--set", "controller.batchResources=true")
        cluster.check(f"install {name}")
        cluster.helm("uninstall", name, "--wait")
        cluster.check(f"uninstall {name}")
    assert cluster.operator.ours() == []


@pytest.mark.parametrize("side", ["--server-side=true", "--server-side=false"])
def test_no_overlay_changes_them(cluster: Cluster, side: str, tmp_path: Path) -> None:
    for components in ((), *(COMPONENTS if side == "--server-side=true" else ())):
        overlay = str(overlay_with(tmp_path / "+".join(["enforce", *components]), "enforce", components))
        cluster.kubectl("apply", side, "-k", "deploy/overlays/observe")
        cluster.kubectl("apply", side, "-k", overlay)
        cluster.check(f"apply with {components}")
        cluster.kubectl("delete", "-k", overlay)
        cluster.kubectl("delete", "--ignore-not-found", "-k", "deploy/overlays/observe")
        cluster.check(f"delete with {components}")
        assert cluster.operator.ours() == []


def test_what_is_applied_once_changes_them_neither(cluster: Cluster, request: pytest.FixtureRequest) -> None:
    if "Koordinator first" in request.node.name:
        with pytest.raises(AssertionError, match="conflict"):
            cluster.kubectl(*BOOTSTRAP)
    else:
        cluster.kubectl(*BOOTSTRAP)
    cluster.check("bootstrap again")


def test_koordinator_takes_over_what_it_finds(cluster: Cluster) -> None:
    """As deploy/README.md says: its definitions by force, then `besideKoordinator`."""
    cluster.kubectl("apply", "--server-side", "-f", "deploy/base/namespace.yaml")
    cluster.helm("install", "koordebpf", "deploy")
    kept = {name: each for name, each in cluster.before.items() if name.split("/")[0] in ("NodeSLO", "NodeMetric")}
    assert len(kept) == 6
    cluster.apply_given(of_koordinator(), "--force-conflicts")
    cluster.kubectl("wait", "--for=condition=Established", "crd", "--all")
    cluster.settle()
    assert {name: cluster.before[name] for name in kept} == kept
    cluster.helm("upgrade", "koordebpf", "deploy", "--reuse-values", "--set", "besideKoordinator=true")
    cluster.check("besideKoordinator")
    with pytest.raises(AssertionError, match="conflict"):
        cluster.kubectl(*BOOTSTRAP)
    cluster.check("bootstrap beside Koordinator")
    cluster.helm("rollback", "koordebpf")
    cluster.check("rollback")
    cluster.helm("uninstall", "koordebpf", "--wait")
    cluster.check("uninstall")


class TestAnOlderChart:
    """Its releases have the definitions in their manifest, with nothing that tells Helm to keep them."""

    @pytest.fixture
    def operator(self, binaries: Binaries, tmp_path: Path) -> Iterator[Operator]:
        with control_plane(binaries.kubernetes) as plane:
            operator = Operator(plane, binaries, tmp_path / "helm")
            for name in ("base/namespace.yaml", "bootstrap/namespace.yaml"):
                operator.kubectl("apply", "--server-side", "-f", f"deploy/{name}")
            yield operator

    @pytest.fixture
    def older(self, tmp_path: Path) -> str:
        chart = shutil.copytree(CHART, tmp_path / "older")
        (chart / "templates/kept.yaml").unlink()
        values = {"nodeslo": "not .Values.besideKoordinator", "nodemetric": ".Values.controller.batchResources"}
        for name, condition in values.items():
            file = f'{{{{ .Files.Get "bootstrap/{name}-crd.yaml" }}}}'
            (chart / f"templates/{name}-crd.yaml").write_text(f"{{{{- if {condition} }}}}\n{file}\n{{{{- end }}}}\n")
        return str(chart)

    def installed(self, operator: Operator, older: str) -> dict[str, Object]:
        operator.helm("install", "koordebpf", older, "--set", "controller.batchResources=true")
        operator.kubectl("wait", "--for=condition=Established", "crd", "--all")
        objects = [each for each in in_use() if each["kind"] in ("NodeSLO", "NodeMetric")]
        operator.kubectl("apply", "--server-side", "-f", "-", given=yaml.safe_dump_all(objects))
        return self.objects(operator)

    def objects(self, operator: Operator) -> dict[str, Object]:
        kinds = {"NodeSLO", "NodeMetric"}
        return {name: each for name, each in operator.of_others().items() if name.split("/")[0] in kinds}

    def test_an_upgrade_leaves_its_definitions_to_the_cluster(self, operator: Operator, older: str) -> None:
        before = self.installed(operator, older)
        assert len(before) == 6
        upgrade = ("upgrade", "koordebpf", "deploy", "--reset-values")
        for value in ("controller.batchResources=false", "besideKoordinator=true", "besideKoordinator=false"):
            operator.helm(*upgrade, "--set", value)
            assert self.objects(operator) == before, value
        operator.helm("rollback", "koordebpf")
        assert self.objects(operator) == before
        said = operator.helm("uninstall", "koordebpf", "--wait")
        assert "kept due to the resource policy" in said
        assert self.objects(operator) == before
        for name in ("another", "koordebpf"):
            operator.helm("install", name, "deploy")
            operator.helm("uninstall", name, "--wait")
            assert self.objects(operator) == before

    def test_what_another_made_of_a_definition_stays(self, operator: Operator, older: str) -> None:
        self.installed(operator, older)
        theirs = [each for each in of_koordinator() if each["metadata"]["name"] == "nodeslos.slo.koordinator.sh"]
        operator.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", given=yaml.safe_dump_all(theirs))
        wanted = operator.get("crd", "nodeslos.slo.koordinator.sh")["spec"]
        for value in ("besideKoordinator=true", "besideKoordinator=false"):
            operator.helm("upgrade", "koordebpf", "deploy", "--reset-values", "--set", value)
            assert operator.get("crd", "nodeslos.slo.koordinator.sh")["spec"] == wanted

    def test_a_definition_that_is_marked_by_hand_outlives_every_renderer(self, operator: Operator, older: str) -> None:
        before = self.installed(operator, older)
        (mark,) = [line for line in commands("Whose objects are whose") if "annotate" in line]
        operator.type(mark)
        (Path(older) / "templates/nodeslo-crd.yaml").unlink()  # as today's chart where nothing can be looked up
        operator.helm("upgrade", "koordebpf", older, "--set", "besideKoordinator=true")
        assert self.objects(operator) == before
        operator.helm("uninstall", "koordebpf", "--wait")
        assert self.objects(operator) == before
