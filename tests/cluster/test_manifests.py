"""What an operator applies, rolls back and removes, by kubectl and by Helm: a real API server without nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from tests.cluster.binaries import Binaries
from tests.cluster.control_plane import control_plane
from tests.cluster.documented import commands
from tests.cluster.installation import Operator
from tests.deploy.programs import operator_definitions
from tests.deploy.rendered import DEPLOY, built, overlay_with, templated

pytestmark = pytest.mark.slow  # compiling helm and kustomize takes minutes on a fresh machine

# Those that change the same object are apart.
COMPONENTS = [
    [
        "beside-koordinator",
        "node-mark",
        "katalyst",
        "instead-of-koordlet",
        "namespace-labels",
        "pod-deletion",
        "own-node-only",
        "prometheus-operator",
    ],
    ["cri"],
    ["cri-o", "nri", "kubelet-state", "layers"],
    ["batch-resources"],
    ["host-processes"],
    ["oom-score-adj"],
    ["core-sched", "readers"],
    ["privileged"],
]


@pytest.fixture(scope="module")
def operator(binaries: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """A cluster of its own: nothing of deploy/ is in it but what is applied once."""
    with control_plane(binaries.kubernetes) as cluster:
        operator = Operator(cluster, binaries, tmp_path_factory.mktemp("helm"))
        definitions = [operator_definitions()[kind] for kind in ("PodMonitor", "PrometheusRule")]
        operator.kubectl("apply", "--server-side", "-f", "-", given=yaml.safe_dump_all(definitions))
        operator.kubectl("apply", "--server-side", "-k", "deploy/bootstrap")
        operator.kubectl("apply", "--server-side", "-f", "deploy/base/namespace.yaml")
        operator.kubectl("wait", "--for=condition=Established", "crd", "--all")
        yield operator


@pytest.mark.parametrize("components", COMPONENTS, ids="+".join)
def test_the_api_server_takes_every_field(components: Sequence[str], operator: Operator, tmp_path: Path) -> None:
    objects = built(overlay_with(tmp_path, "enforce", components))
    applied = operator.kubectl(
        *("apply", "--server-side", "--validate=strict", "--dry-run=server", "-o", "name", "-f", "-"),
        given=yaml.safe_dump_all(objects),
    )
    assert len(applied.splitlines()) == len(objects)


def test_every_component_was_taken() -> None:
    assert {name for names in COMPONENTS for name in names} == {path.name for path in (DEPLOY / "components").iterdir()}


def test_a_field_that_is_not_known_is_refused(operator: Operator) -> None:
    (policy,) = [one for one in templated() if one["kind"] == "NetworkPolicy"]
    policy["spec"]["podSelektor"] = {}
    with pytest.raises(AssertionError, match="podSelektor"):
        operator.kubectl(
            *("apply", "--server-side", "--validate=strict", "--dry-run=server", "-f", "-"),
            given=yaml.safe_dump(policy),
        )


def test_from_watching_to_acting_and_back_with_kustomize(operator: Operator) -> None:
    apply = ("apply", "--server-side", "-k")
    operator.kubectl(*apply, "deploy/overlays/observe")
    watching = operator.get("daemonset", "koordebpf-agent")["spec"]
    assert (operator.daemonsets(), operator.evicting_roles()) == (["koordebpf-agent"], [])
    operator.kubectl(*apply, "deploy/overlays/enforce")
    assert operator.daemonsets() == ["koordebpf-agent", "koordebpf-agent-enforce"]
    assert operator.evicting_roles() == ["koordebpf-agent"]
    operator.kubectl(*apply, "deploy/overlays/observe")
    assert operator.get("daemonset", "koordebpf-agent")["spec"] == watching
    assert operator.evicting_roles() == []
    operator.kubectl("delete", "-k", "deploy/overlays/enforce")
    assert operator.ours() == []


def test_from_watching_to_acting_and_back_with_helm(operator: Operator) -> None:
    bootstrap, namespace, install, upgrade, rollback, uninstall = commands("The same with Helm")
    operator.type(bootstrap)
    operator.type(namespace)
    notes = operator.type(install)
    assert "koordebpf watches every node and evicts no pod." in notes
    # The namespace has the label already.
    assert "Pod Security Standard" not in notes
    watching = operator.get("daemonset", "koordebpf-agent")["spec"]
    assert (operator.daemonsets(), operator.evicting_roles()) == (["koordebpf-agent"], [])
    notes = operator.type(upgrade)
    assert "acts on those with koordebpf.io/mode=enforce" in notes
    assert operator.daemonsets() == ["koordebpf-agent", "koordebpf-agent-enforce"]
    assert operator.evicting_roles() == ["koordebpf-agent"]
    operator.type(rollback)
    assert operator.get("daemonset", "koordebpf-agent")["spec"] == watching
    assert (operator.daemonsets(), operator.evicting_roles()) == (["koordebpf-agent"], [])
    operator.type(uninstall)
    assert operator.ours() == []
