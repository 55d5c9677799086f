"""Runs a command of koordebpf in a node's agent, and says what it says."""

from __future__ import annotations

from koordebpf.cli.echo import echo
from koordebpf.cli.kubectl.options import Reached, end


def pass_on(reached: Reached, node: str, command: tuple[str, ...]) -> None:
    """Print its output and end with its exit code.

    Raises:  ConfigError: the node has no agent. KubeError: it does not run.
    """
    from koordebpf.kube.remote.exec import text_of
    from koordebpf.kube.remote.pods import CONTAINER
    from koordebpf.tools.cluster.recordings import agent_on

    with reached.agents() as agents:
        pod = agent_on(agents, node)
        said, ended = text_of(agents.cluster, pod.place, CONTAINER, ("koordebpf", *command), agents.within_s)
    echo(said.decode(errors="replace"), nl=False)
    echo(ended.stderr, err=True, nl=False)
    end(ended.exit_code)
