"""`koordebpf pod`."""

from __future__ import annotations

from pathlib import Path

import click

from koordebpf.cli.echo import echo, echo_object
from koordebpf.cli.inputs import run_dir_option
from koordebpf.cli.schemas import schema_option


@click.group()
def pod() -> None:
    """Say which cgroup values a pod has, who set them, and why."""


@pod.command()
@click.argument("wanted", metavar="POD")
@run_dir_option()
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@schema_option("pod")
def explain(wanted: str, run_dir: Path, as_json: bool) -> None:
    """Say of every cgroup value of a pod who set it, and from which field.

    POD is a name, namespace/name or UID. A value that a runtime hook sets stands with the field of the pod, the Node or
    the NodeSLO that it comes from, one that any strategy has written with what it was before. The others were set by
    kubelet, the container runtime or the kernel. Names are known while an agent runs; without one POD is a UID.

    \b
    Examples:
      koordebpf pod explain spark/be-7
      koordebpf pod explain --json spark/be-7 | jq '.cgroups[].values[]'
    """
    from koordebpf.tools.pod_explain import explain_pod, pod_values_page

    explained = explain_pod(wanted, run_dir)
    if as_json:
        echo_object("pod", explained)
    else:
        echo(pod_values_page(explained))
