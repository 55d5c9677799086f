"""`koordebpf explain node`."""

from __future__ import annotations

from pathlib import Path

import click

from koordebpf.cli.echo import echo, echo_object
from koordebpf.cli.inputs import kubeconfig_options
from koordebpf.cli.reference.schemas import schema_option

_RESOURCES = ("batch-cpu", "batch-memory", "mid-cpu", "mid-memory")


@click.command()
@click.argument("node_name", metavar="NODE")
@click.argument("resource", required=False, metavar="[RESOURCE]", type=click.Choice(_RESOURCES))
@kubeconfig_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object, amounts in millicpu and bytes.")
@schema_option("node-resources")
def node(
    node_name: str, resource: str | None, kubeconfig: Path | None, kube_context: str | None, as_json: bool
) -> None:
    """Say how a Node's batch and mid resources come to be: the sum with every term, and where each is from.

    RESOURCE is batch-cpu, batch-memory, mid-cpu or mid-memory; default: all four.

    It reads the Node, its pods, its NodeMetric, its NodeResourceTopology and slo-controller-config, and computes what
    koordebpf controller --batch-resources does. It writes nothing, and needs no controller that runs: where a
    Koordinator manager computes, it shows what that comes to by the same formulas.

    \b
    Examples:
      koordebpf explain node worker-1 batch-memory
      koordebpf explain node worker-1 --json | jq .calculations
    """
    from koordebpf.controller.batch.explain import explain
    from koordebpf.kube.http.transport import open_cluster
    from koordebpf.report.colocation.batch_page import explained_node

    transport = open_cluster(kubeconfig, kube_context)
    try:
        explained = explain(transport, node_name, f"kubernetes.io/{resource}" if resource else None)
    finally:
        transport.close()
    if as_json:
        echo_object("node-resources", explained)
    else:
        echo(explained_node(explained))
