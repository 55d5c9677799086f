"""`koordebpf slo`: the manager's part of Koordinator, for one node at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from koordebpf.cli.echo import echo, echo_json
from koordebpf.cli.inputs import read_input
from koordebpf.cli.schemas import schema_option
from koordebpf.errors import NOT_GIVEN, ConfigError

if TYPE_CHECKING:
    from koordebpf.kube.sources.manifest import Manifests


F = TypeVar("F", bound=Callable[..., Any])


def _name_options(command: F) -> F:
    command = click.option("--namespace", metavar="NAMESPACE", help="The ConfigMap's. Default: any.")(command)
    return click.option(
        "--name", metavar="NAME", help="The ConfigMap's, as ack-slo-config. Default: slo-controller-config."
    )(command)


@click.group()
def slo() -> None:
    """Render and check the ConfigMap slo-controller-config.

    \b
    Examples:
      koordebpf slo render --node node.json slo-controller-config.yaml
      koordebpf slo check slo-controller-config.yaml
    """


@slo.command()
@click.argument("configmap", metavar="CONFIGMAP.yaml")
@_name_options
@click.option(
    "--node", "node_path", required=True, metavar="NODE.json", help="The Node, for its labels and annotations."
)
@click.option("--nodeslo", "nodeslo_path", metavar="NODESLO.json", help="The NodeSLO that the node has.")
@click.option("--object", "whole", is_flag=True, help="Print the whole NodeSLO object, ready to be applied.")
def render(
    configmap: str, name: str | None, namespace: str | None, node_path: str, nodeslo_path: str | None, whole: bool
) -> None:
    """Print the NodeSLO spec a node gets from the ConfigMap, as JSON.

    Defaults come first, then the cluster's strategy, then the first strategy whose selector matches the node. It is
    what the controller writes: where that strategy is unusable the node keeps what its NodeSLO has (--nodeslo), without
    one it is off. Where a key as a whole is unusable nothing is printed.

    \b
    Examples:
      kubectl get node worker-1 -o json > node.json
      koordebpf slo render --node node.json slo-controller-config.yaml
      koordebpf slo render --object --node node.json cm.yaml | kubectl apply -f -
    """
    from koordebpf.kube.sources.manifest import NODESLO_VERSION
    from koordebpf.slo.convert import decode_object, member
    from koordebpf.slo.manager.effective import render_spec

    node = _found(node_path).node
    if node is None:
        raise ConfigError(node_path, "no Node", "must hold a v1 Node")
    meta = node.metadata
    _, data = _config(configmap, name, namespace)
    labels = meta.labels or {}
    nodeslo = has = None
    if nodeslo_path is not None:
        nodeslo = _found(nodeslo_path).nodeslo
        if nodeslo is None:
            raise ConfigError(nodeslo_path, "no NodeSLO", "must hold a NodeSLO")
        written = decode_object(nodeslo, "NodeSLO")
        of_node = (member(written, "metadata", "NodeSLO") or {}).get("name")
        if of_node != meta.name:
            raise ConfigError(nodeslo_path, of_node, f"must hold the NodeSLO of the Node, {meta.name}")
        has = member(written, "spec", "")
    spec: Any = render_spec(data, labels, meta.annotations, has)
    for note in _notes(data, labels, meta.annotations, nodeslo):
        echo(f"koordebpf: {note}", err=True)
    if whole:
        spec = {"apiVersion": NODESLO_VERSION, "kind": "NodeSLO", "metadata": {"name": meta.name}, "spec": spec}
    echo_json(spec, indent=2)


@slo.command()
@click.argument("configmap", metavar="CONFIGMAP.yaml")
@_name_options
@click.option("--nodes", metavar="NODES.json", help="The Nodes there are: none may be selected twice.")
@click.option("--strict", is_flag=True, help="Refuse what koordlet accepts but Koordinator's webhook refuses.")
@click.option("--json", "as_json", is_flag=True, help="Print the problems as a JSON array.")
@schema_option("slo-problem", is_list=True)
def check(
    configmap: str, name: str | None, namespace: str | None, nodes: str | None, strict: bool, as_json: bool
) -> None:
    """Say what is wrong with the ConfigMap, as Koordinator's webhook would.

    Ranges, pairs of a threshold and its lower mark, selectors that overlap, nodes that are selected twice. A field that
    nothing reads is a warning, with --strict a problem. Another object of the file that cannot be read is named, too.
    The exit code is 0 where nothing is wrong and 2 otherwise.

    \b
    Examples:
      koordebpf slo check slo-controller-config.yaml
      kubectl get nodes -o json > n.json
      koordebpf slo check --nodes n.json slo-controller-config.yaml
      koordebpf slo check --name ack-slo-config --namespace kube-system cm.yaml
    """
    from koordebpf.kube.sources.manifest import node_labels
    from koordebpf.slo.manager.shapes import unknown_in_config
    from koordebpf.slo.manager.webhook import check_configmap

    found, data = _config(configmap, name, namespace)
    problems = check_configmap(data, node_labels(nodes, read_input(nodes)) if nodes else None, strict=strict)
    for field in () if strict else unknown_in_config(data):
        echo(f"koordebpf: {field}", err=True)
    if as_json:
        from koordebpf.printable import json_bytes, with_schema

        echo_json(b"[%s]" % b",".join(with_schema("slo-problem", json_bytes(each)) for each in problems))
    else:
        for problem in problems:
            echo(f"{problem.reason}: {problem}")
        if not problems:
            echo(f"{configmap}: nothing wrong in {len(data)} keys")
    if problems or found.bad:
        sys.exit(2)


@slo.command()
@click.option("--node-metric", is_flag=True, help="That of NodeMetric, for batch and mid resources.")
def crd(node_metric: bool) -> None:
    """Print the CustomResourceDefinition of NodeSLO, for a cluster without Koordinator.

    \b
    Examples:
      koordebpf slo crd | kubectl apply --server-side -f -
    """
    from koordebpf.slo.manager.crd import crd_json, node_metric_crd, nodeslo_crd

    echo_json(crd_json(node_metric_crd() if node_metric else nodeslo_crd()))


# What of the ConfigMap does not mean what it says, for this node.
def _notes(
    data: dict[str, str], labels: dict[str, str], annotations: dict[str, str] | None, nodeslo: msgspec.Raw | None
) -> list[str]:
    from koordebpf.slo.manager.shapes import THRESHOLD_KEY, unknown_in_config
    from koordebpf.slo.nodeslo import strategy_doubts
    from koordebpf.slo.spec import parse_spec, spec_of_configmap

    last = None if nodeslo is None else parse_spec(nodeslo)[0]
    made, _, left_out = spec_of_configmap(data, labels, annotations, last)
    doubts = strategy_doubts(made.resourceUsedThresholdWithBE, THRESHOLD_KEY)
    return [*map(str, left_out), *doubts, *map(str, unknown_in_config(data))]


# What a file of objects holds; each object that cannot be read is named, the others count.
def _found(path: str) -> Manifests:
    from koordebpf.kube.sources.manifest import parse_manifests

    return _with_bad_named(parse_manifests({path: read_input(path)}))


def _with_bad_named(found: Manifests) -> Manifests:
    for each in found.bad:
        echo(f"koordebpf: {each.error}", err=True)
    return found


# The same of a file with the ConfigMap, among others, and the ConfigMap's data.
def _config(path: str, name: str | None, namespace: str | None) -> tuple[Manifests, dict[str, str]]:
    from koordebpf.kube.config_map import named_config_map
    from koordebpf.kube.sources.manifest import parse_manifests

    named = named_config_map(name, namespace, "--name" if name else "--namespace")
    raw = read_input(path)
    found = _with_bad_named(
        parse_manifests({path: raw}, among_others=True, config_map=named, any_namespace=namespace is None)
    )
    if (data := found.slo_controller_config) is not None:
        return found, data
    wanted = named if namespace is not None else named.name
    if others := found.other_config_maps:
        there = f"found ConfigMap {', '.join(others)}"
        raise ConfigError(path, NOT_GIVEN, f"{there}, must be {wanted}: --name and --namespace name another")
    raise ConfigError(path, "no ConfigMap", f"must hold the ConfigMap {wanted}")
