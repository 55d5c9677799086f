"""`koordebpf run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

_FILE = click.Path(exists=True, path_type=Path)


@click.command()
@click.option(
    "--source",
    type=click.Choice(["file", "kubelet", "api"]),
    default="file",
    show_default=True,
    help="Where pods, Node and NodeSLO come from.",
)
@click.option(
    "--pods",
    "files",
    type=_FILE,
    multiple=True,
    help="Source file: YAML or JSON with Pods, Node, NodeSLO or slo-controller-config; or a directory.",
)
@click.option(
    "--node-name", envvar=["KOORDEBPF_NODE_NAME", "NODE_NAME"], help="This node's name. Sources api and kubelet."
)
@click.option(
    "--kubeconfig", type=_FILE, help="Source and executor api: credentials; default: the pod's ServiceAccount."
)
@click.option("--kubelet-url", help="Source kubelet: its HTTPS address, as https://127.0.0.1:10250.")
@click.option("--kubelet-token-file", type=_FILE, help="Source kubelet: default: the pod's ServiceAccount token.")
@click.option("--kubelet-ca-file", type=_FILE, help="Source kubelet: the CA of its serving certificate.")
@click.option("--kubelet-insecure", is_flag=True, help="Source kubelet: do not verify its certificate.")
@click.option(
    "--node-cgroup",
    type=click.Path(path_type=Path),
    help="The node is this cgroup with a memory limit (kind, nested nodes), not the machine.",
)
@click.option(
    "--executor",
    type=click.Choice(["api", "cgroup"]),
    help="Evict through the API server, or kill the pod's cgroup. Default: cgroup for source file, else api.",
)
@click.option("--enforce/--dry-run", default=False, show_default=True, help="Act, or only say what would be done.")
@click.option(
    "--feature-gates", multiple=True, metavar="NAME=BOOL", help="Koordinator's gates, as BEMemoryEvict=false."
)
@click.option(
    "--listen",
    default="127.0.0.1:9320",
    show_default=True,
    metavar="HOST:PORT",
    help="For /metrics, /healthz and /readyz; an empty text for none.",
)
@click.option(
    "--audit", type=click.Path(path_type=Path), help="One JSON line per plan into this file; - for standard output."
)
@click.option(
    "--min-stall-ms",
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Reclaim stalls from this duration on are sent one by one; shorter ones are only counted.",
)
@click.option("--evictions-per-minute", type=click.IntRange(min=1), default=10, show_default=True, help="The budget.")
@click.option(
    "--pods-max-age-s",
    type=click.FloatRange(min=0, min_open=True),
    help="Evict nothing on a list of pods older than this. Default: 90 for source api, else 30.",
)
@click.option(
    "--kill-after-s",
    type=click.FloatRange(min=0),
    help="Executor api: kill the cgroup of a pod not evicted for so long. Default: never.",
)
@click.option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.option("--lock-memory/--no-lock-memory", default=True, show_default=True, help="Lock the agent into memory.")
def run(
    log_format: str,
    feature_gates: tuple[str, ...],
    min_stall_ms: float,
    listen: str,
    executor: str | None,
    **given: Any,
) -> None:
    """Watch a node and protect its latency-sensitive pods.

    Nothing is evicted unless --enforce is given: by default the agent says what it would do, and why.

    \b
    Examples:
      koordebpf run --pods pods.yaml                            this machine, dry run
      koordebpf run --pods pods.yaml --node-cgroup kind/node --enforce
      koordebpf run --source api --node-name $NODE_NAME --audit -
    """
    from koordebpf.agent.config import AgentConfig, parse_feature_gates
    from koordebpf.agent.run import run_agent
    from koordebpf.report.logs import set_up_logging

    set_up_logging(json=log_format == "json")
    config = AgentConfig(
        **given,
        executor=executor or ("cgroup" if given["source"] == "file" else "api"),  # type: ignore[arg-type]  # click's choice
        feature_gates=parse_feature_gates(feature_gates),
        listen=listen or None,
        min_stall_ns=int(min_stall_ms * 1_000_000),
    )
    run_agent(config)
