"""`koordebpf run`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from koordebpf.cli.inputs import FilePath, OutputPath, kubeconfig_options, read_config_file

_FILE = FilePath()


@click.command()
@click.option(
    "--config", "config_file", type=_FILE, help="The agent's configuration file; options given here take precedence."
)
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
    help="Source file: YAML or JSON with Pods, Node, NodeSLO or slo-controller-config, and with PodDisruptionBudgets as"
    " kubectl get -o yaml prints them; or a directory.",
)
@click.option(
    "--node-name", envvar=["KOORDEBPF_NODE_NAME", "NODE_NAME"], help="This node's name. Sources api and kubelet."
)
@kubeconfig_options
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
    "--cgroup-root",
    metavar="PATH",
    help="The kubelet's own --cgroup-root, / or /custom: only cgroups below it are pods'. Default: learned.",
)
@click.option(
    "--backend",
    type=click.Choice(["auto", "co-re", "bcc", "files"]),
    envvar="KOORDEBPF_BACKEND",
    default="auto",
    show_default=True,
    help="Where signals come from: BPF by BTF, BPF by bcc, or no BPF. auto: the first that works.",
)
@click.option(
    "--executor",
    type=click.Choice(["api", "cri", "cgroup"]),
    help="Evict through the API server, stop the pod's containers through their runtime, or kill the pod's cgroup."
    " Default: cgroup for source file, else api.",
)
@click.option(
    "--cri-socket", type=_FILE, help="Executor cri: the runtime's socket; default: where containerd and CRI-O listen."
)
@click.option(
    "--enforce/--dry-run",
    default=False,
    show_default=True,
    allow_from_autoenv=False,
    help="Act, or only say what would be done. Has to be typed.",
)
@click.option(
    "--feature-gates", multiple=True, metavar="NAME=BOOL", help="Koordinator's gates, as BEMemoryEvict=false."
)
@click.option(
    "--listen",
    default="127.0.0.1:9320",
    show_default=True,
    metavar="HOST:PORT",
    help="For /metrics; an empty text for none. Probes are answered there too, but may have to wait for other clients.",
)
@click.option(
    "--probe-listen",
    metavar="HOST:PORT",
    help="For /healthz and /readyz alone; an empty text for none. Default: the host of --listen, its port + 2.",
)
@click.option("--audit", type=OutputPath(), help="One JSON line per plan into this file; - for standard output.")
@click.option(
    "--frames", type=OutputPath(), help="One JSON line per round into this file, or -; koordebpf plan decides it again."
)
@click.option(
    "--recorder-folder",
    "recorder",
    type=Path,  # not click.Path, which looks at it: on a hung disk that does not return
    callback=lambda _context, _option, value: value and {"folder": None if str(value) == "none" else value},
    help="Rounds are recorded below it, 64 MiB of them. Default: /var/lib/koordebpf. none: no recorder.",
)
@click.option(
    "--koordinator-metrics/--no-koordinator-metrics",
    default=True,
    show_default=True,
    help="Koordinator's names of metrics too, as koordlet_pod_eviction.",
)
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    default="/run/koordebpf",
    show_default=True,
    help="Folder on a tmpfs, shared by all agents of a machine: of those with --enforce one runs for each node. In it"
    " is the socket that koordebpf explain asks.",
)
@click.option(
    "--stand-by/--no-stand-by",
    default=False,
    show_default=True,
    help="With --enforce: where another agent acts on this node, watch until it ends and act then.",
)
@click.option(
    "--min-stall-ms",
    "min_stall_ns",
    callback=lambda _context, _option, value: int(value * 1_000_000),
    type=click.FloatRange(min=0),
    default=1.0,
    show_default=True,
    help="Reclaim stalls from this duration on are sent one by one; shorter ones are only counted.",
)
@click.option("--evictions-per-minute", type=click.IntRange(min=1), default=10, show_default=True, help="The budget.")
@click.option(
    "--pods-max-age-s",
    "pods_max_age_ns",
    callback=lambda _context, _option, value: None if value is None else int(value * 1_000_000_000),
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
@click.pass_context
def run(context: click.Context, /, config_file: Path | None, enforce: bool, **options: Any) -> None:
    """Watch a node and protect its latency-sensitive pods.

    Nothing is evicted, and no cgroup file is written, unless --enforce is given: by default the agent says what it
    would do, and why. A configuration file cannot say it, nor can an environment variable.

    --config takes everything else from a file, and more than there are options for. Options given here take
    precedence; koordebpf config show prints every setting with its default and its reason.

    \b
    Examples:
      koordebpf run --pods pods.yaml                     this machine, dry run
      koordebpf run --pods pods.yaml --node-cgroup kind/node --enforce
      koordebpf run --source api --node-name $NODE_NAME --audit -
      koordebpf run --config /etc/koordebpf/config.yaml --enforce
    """
    from koordebpf.agent.run import run_agent
    from koordebpf.configuration.checked import agent_config
    from koordebpf.configuration.file import places
    from koordebpf.configuration.settings import named_gates
    from koordebpf.policy.guards import GuardLimits
    from koordebpf.report.log_formats import set_up_logging
    from koordebpf.slo.convert import laid_over

    in_file = read_config_file(config_file)
    typed = {
        name: value
        for name, value in options.items()
        if context.get_parameter_source(name) is not ParameterSource.DEFAULT
    }
    typed["feature_gates"], idle_gates = named_gates(typed.get("feature_gates", ()))
    typed["guards"] = {name: typed.pop(name) for name in GuardLimits.__struct_fields__ if name in typed}
    config = agent_config(laid_over(in_file, {**typed, "enforce": enforce}))
    set_up_logging(json=config.log_format == "json")
    log = logging.getLogger("koordebpf")
    if both := places(in_file) & places(typed):
        log.info("the command line takes precedence over %s: %s", config_file, ", ".join(sorted(both)))
    if idle_gates:
        log.warning("feature gates of koordlet that do nothing here: %s", ", ".join(idle_gates))
    run_agent(config)
