"""`koordebpf controller`."""

from __future__ import annotations

from typing import Any

import click

from koordebpf.cli.inputs import config_map_option, kubeconfig_options


@click.command()
@kubeconfig_options
@config_map_option
@click.option(
    "--lease-namespace",
    metavar="NAMESPACE",
    help="Where the Lease koordebpf-controller is. Default: the pod's own, outside a pod koordebpf-system.",
)
@click.option(
    "--listen",
    default="127.0.0.1:9321",
    show_default=True,
    metavar="HOST:PORT",
    help="For /metrics; an empty text for none. Probes are answered there too, but may have to wait for other clients.",
)
@click.option(
    "--probe-listen",
    metavar="HOST:PORT",
    help="For /healthz and /readyz alone; an empty text for none. Default: the host of --listen, its port + 2.",
)
@click.option("--adopt", is_flag=True, help="Take over NodeSLOs that another made, as a Koordinator manager.")
@click.option(
    "--batch-resources",
    is_flag=True,
    help="Give Nodes their batch and mid resources too, and make their NodeMetrics, by colocation-config.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be written, and write nothing; takes no Lease.")
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
def controller(log_format: str, **given: Any) -> None:
    """Give every Node the NodeSLO that slo-controller-config says.

    For clusters without Koordinator's manager, whose part this is: the ConfigMap slo-controller-config in the namespace
    koordinator-system, or --config-map, is rendered for each Node (defaults, then the cluster's strategy, then the
    first strategy whose selector matches) and written where the NodeSLO of the Node's name differs. Agents read these;
    without this they read the ConfigMap themselves.

    It writes without being asked twice: a NodeSLO evicts no pod, agents do, and only those that run with --enforce.
    --dry-run tells instead, and needs no more than the right to read.

    \b
    What it writes, and what it leaves alone:
      NodeSLOs with the label app.kubernetes.io/managed-by=koordebpf-controller
      are its own. While there is any without it, a Koordinator manager may be
      running: then it writes none, is not ready, and says so. --adopt takes
      them over; stop the manager first, or the two write against each other.
      A NodeSLO is owned by its Node: Kubernetes removes it with the Node.
      What another changes in one is put right, later each time.

    \b
    An edit that is wrong:
      A key of the ConfigMap that cannot be parsed, or holds a value out of its
      range, stays as it was last good, and so does an entry for some nodes; all
      others are taken over. After a restart NodeSLOs keep what they have of it,
      and new ones are off. enable: false counts, whatever is wrong beside it. The
      log, an Event and koordebpf_controller_configmap_problems tell of it.

    Of several controllers one leads, by a Lease that it renews every 2 s; when it dies another takes over within 17 s,
    when it is stopped within 2 s.

    With --batch-resources it also computes what best-effort and mid pods may request of each Node, from its NodeMetric,
    and writes kubernetes.io/batch-cpu, batch-memory, mid-cpu and mid-memory into the Node's status. It does not while a
    Koordinator manager holds its Lease, nor on Nodes where one wrote them, without --adopt. docs/colocation/
    batch-resources.md has the formulas; koordebpf explain node NODE batch-memory says how a number came to be.

    \b
    Needs (deploy/base/rbac.yaml):
      list, watch           nodes, nodeslos, configmap slo-controller-config
      create, update        nodeslos
      create                events
      create, get, update   lease koordebpf-controller
    And with --batch-resources (deploy/components/batch-resources):
      list, watch           pods, nodemetrics, noderesourcetopologies
      create, update, delete  nodemetrics
      patch                 nodes/status
      get, update           noderesourcetopologies
      get                   lease koordinator-manager

    \b
    Examples:
      koordebpf controller --dry-run --kubeconfig ~/.kube/config
      koordebpf controller --listen 0.0.0.0:9321 --log-format json
      kubectl get nodeslo NODE -o yaml
    """
    from koordebpf.controller.run import ControllerConfig, run_controller
    from koordebpf.report.log_formats import set_up_logging

    set_up_logging(json=log_format == "json")
    run_controller(ControllerConfig(**given))
