"""All that deploy/ can be rendered to, against the schemas of six Kubernetes minors: unknown fields are errors."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from jsonschema import Draft202012Validator
from kubernetes_validate.utils import all_versions, major_minor

from tests.deploy.programs import operator_definitions
from tests.deploy.rendered import DEPLOY, Object, built, by_name, offered, overlay_with, templated

# What the package has that is pinned in pyproject.toml: it comes out with each Kubernetes.
MINORS = sorted({major_minor(version) for version in all_versions()}, key=lambda text: int(text.split(".")[1]))[-6:]
COMPONENTS = sorted(path.name for path in (DEPLOY / "components").iterdir())
OPERATOR = "monitoring.coreos.com"


@functools.cache
def renderings() -> dict[str, list[Object]]:
    """What is applied, by what it is of. Helm and kustomize render the same (test_chart.py), so each object is one."""
    whole = {name: built(DEPLOY / "overlays" / name) for name in ("observe", "enforce")}
    whole["bootstrap"] = built(DEPLOY / "bootstrap")
    whole["chart"] = templated({"enforce": {"enabled": True}})
    return whole


def with_components(folder: Path) -> Iterator[tuple[str, list[Object]]]:
    """Yield what each component makes of overlays/enforce, and all of them together."""
    for components in (*([name] for name in COMPONENTS), _in_order(COMPONENTS)):
        name = "+".join(components)
        yield name, built(overlay_with(folder / name, "enforce", components))


def _in_order(names: list[str]) -> list[str]:
    listed = offered("enforce")
    assert sorted(listed) == names
    return listed


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Object]]:
    """Every object once, with what it is of."""
    rendered = [*renderings().items(), *with_components(tmp_path_factory.mktemp("deploy"))]
    different: list[tuple[str, Object]] = []
    for name, whole in rendered:
        seen = [one for _, one in different]
        different += [(name, one) for one in whole if one not in seen]
    return different


def test_there_are_six_minors_and_the_newest_is_the_package_s_own() -> None:
    assert len(MINORS) == 6
    newest = int(MINORS[-1].split(".")[1])
    assert [f"1.{newest - back}" for back in reversed(range(6))] == MINORS
    assert MINORS[-1] == major_minor(kubernetes_validate.__version__)


@pytest.mark.parametrize("minor", MINORS)
def test_every_object_is_valid(minor: str, objects: list[tuple[str, Object]]) -> None:
    judged = 0
    for name, one in objects:
        if one["apiVersion"].startswith(OPERATOR):
            continue
        try:
            kubernetes_validate.validate(one, minor, strict=True)
        except kubernetes_validate.ValidationError as error:
            at = ".".join(map(str, error.absolute_path))
            pytest.fail(f"{name}: {one['kind']} {one['metadata']['name']} {at}: {error.message}")
        judged += 1
    assert judged > 20


def test_what_is_for_the_operator_is_valid_by_its_own_definitions(objects: list[tuple[str, Object]]) -> None:
    judged = {one["kind"]: complaints(one) for _, one in objects if one["apiVersion"].startswith(OPERATOR)}
    assert judged == {"PodMonitor": [], "PrometheusRule": []}


class TestWhatIsWrongIsFound:
    @pytest.mark.parametrize("minor", MINORS)
    @pytest.mark.parametrize(
        ("kind", "path", "value"),
        [
            ("DaemonSet", ("spec", "template", "spec", "hostPid"), True),
            ("DaemonSet", ("spec", "template", "spec", "containers", 0, "livenessProbe", "periodSeconds"), "10s"),
            ("ClusterRole", ("rules", 0, "verb"), ["list"]),
            ("NetworkPolicy", ("spec", "egress", 0, "port"), 443),
        ],
    )
    def test_by_each_minor(self, minor: str, kind: str, path: tuple[str | int, ...], value: object) -> None:
        one = changed(next(one for one in renderings()["enforce"] if one["kind"] == kind), path, value)
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(one, minor, strict=True)

    @pytest.mark.parametrize(
        ("kind", "path", "value"),
        [
            ("PodMonitor", ("spec", "podMetricsEndpoints", 0, "honourLabels"), True),
            ("PrometheusRule", ("spec", "groups", 0, "rules", 0, "for"), "five minutes"),
        ],
    )
    def test_by_the_operator(self, kind: str, path: tuple[str | int, ...], value: object, tmp_path: Path) -> None:
        applied = by_name(built(overlay_with(tmp_path, "observe", ["prometheus-operator"])))
        assert complaints(changed(applied[kind, "koordebpf"], path, value))


def changed(one: Object, path: tuple[str | int, ...], value: object) -> Object:
    one = copy.deepcopy(one)
    at: Any = one
    for part in path[:-1]:
        at = at[part]
    at[path[-1]] = value
    return one


def complaints(one: Object) -> list[str]:
    """What the definition of its kind says against an object, unknown fields among it."""
    definition = operator_definitions()[one["kind"]]["spec"]
    versions = {f"{definition['group']}/{version['name']}": version for version in definition["versions"]}
    schema = strict(versions[one["apiVersion"]]["schema"]["openAPIV3Schema"]["properties"]["spec"])
    return [error.message for error in Draft202012Validator(schema).iter_errors(one["spec"])]


def strict(schema: Any) -> Any:
    """The schema, in which a field that is not named is an error; it would be dropped by the API server."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    below = {name: strict(value) for name, value in schema.items()}
    if "properties" in schema and "type" in schema and not schema.get("x-kubernetes-preserve-unknown-fields"):
        below.setdefault("additionalProperties", False)
    if below.pop("x-kubernetes-int-or-string", False):
        below = {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    return below
