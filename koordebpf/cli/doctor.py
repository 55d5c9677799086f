"""`koordebpf doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from koordebpf.cli.echo import echo, echo_json
from koordebpf.cli.inputs import FilePath, read_config_file
from koordebpf.cli.schemas import schema_option

if TYPE_CHECKING:
    from koordebpf.kernel.backends.select import WantedBackend


@click.command()
@click.option("--node-cgroup", type=click.Path(path_type=Path), help="Examine for this cgroup as the node.")
@click.option("--cgroup-root", metavar="PATH", help="The kubelet's own --cgroup-root, to be looked for.")
@click.option("--fix", is_flag=True, help="Below the table, what to type to get what is missing. Changes nothing.")
@click.option(
    "--backend",
    type=click.Choice(["auto", "co-re", "bcc", "files"]),
    help="Try this one alone; default: which would be taken, and why not the others.",
)
@click.option(
    "--config",
    "config_file",
    type=FilePath(),
    help="The agent's configuration file: what the strategies whose gates are on lack here, Katalyst's plugins too.",
)
@click.option("--json", "as_json", is_flag=True, help="For machines: one object, the fixes included.")
@schema_option("doctor")
def doctor(
    node_cgroup: Path | None,
    cgroup_root: str | None,
    fix: bool,
    backend: WantedBackend | None,
    config_file: Path | None,
    as_json: bool,
) -> None:
    """Show which signals and which policies of suppression work on this host, and what is missing.

    Each is tried: the programs are loaded and attached for a moment and gone again. What is marked -- does not work
    here, or works only in the way that is noted below it, with what that costs. With --fix the kernel option, boot
    parameter, capability, package or mount that is missing is named, by what the host says of itself: its kernel's
    configuration, the process's capabilities, its mounts.

    While an agent runs, it is asked for its pods: a line names those whose containers have a CPU quota above their
    limit, as koordlet's CPU burst leaves them. With --config it is the agent that has the runDir of that file.

    With --config more tables have the plugins of Katalyst's eviction manager and what carries its decisions out, and
    the parts of each strategy whose feature gate is on, as they would work here. What is missing there does not change
    the exit code.

    \b
    Exit code:
      0  every signal is available by its best method
      1  the agent runs here, with the losses that the table names
      2  it cannot run here, or the command line is wrong

    Cost: a second; the node notices nothing.

    \b
    Try it, on cgroup v1 and v2:
      setpriv --bounding-set -all --inh-caps -all koordebpf doctor --fix
      unshare -m sh -c 'umount -l /sys/fs/cgroup; koordebpf doctor'

    \b
    Examples:
      koordebpf doctor --fix
      koordebpf doctor --backend files
      koordebpf doctor --config /etc/koordebpf/config.yaml
      koordebpf doctor --json | jq '.sources[] | select(.works | not)'
      koordebpf doctor >/dev/null || echo "exit code $?"
    """
    from koordebpf.tools.doctor.checks import examine
    from koordebpf.tools.doctor.page import doctor_text

    config = None
    if config_file is not None:
        from koordebpf.configuration.checked import agent_config

        config = agent_config(read_config_file(config_file))
        node_cgroup, cgroup_root = node_cgroup or config.node_cgroup, cgroup_root or config.cgroup_root
    report = examine(node_cgroup, backend, cgroup_root, config)
    if as_json:
        echo_json(report)
    else:
        echo(doctor_text(report, with_fixes=fix))
    raise SystemExit(report.exit_code)
