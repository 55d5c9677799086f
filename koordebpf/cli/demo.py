"""`koordebpf demo`."""

from __future__ import annotations

import sys

import click

from koordebpf.cli.echo import echo
from koordebpf.cli.schemas import schema_option


@click.command()
@click.option("--story", type=click.Choice(["hog", "page-cache", "own-limit"]), default="hog", show_default=True,
              help="What happens on the node: only a hog is to be evicted.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Events and verdict as one JSON object per line.")
@schema_option("demo-story", "demo-event", "demo-verdict")
@click.option("-v", "--verbose", is_flag=True, help="Show what the agent says while it starts, too.")
def demo(story: str, as_json: bool, verbose: bool) -> None:
    """Watch a node cgroup be eaten and saved, on this kernel.

    Makes a cgroup of 1 GiB that is a node, with a latency-sensitive pod that times itself and two best-effort ones of
    different priority, and runs the real agent on it with --enforce. Takes about ten seconds, needs root and 2 GiB of
    free memory, touches nothing else and leaves nothing behind.

    \b
    Exit code:
      0  it went as it should
      1  it did not
      3  this host lacks what it needs: root, a memory controller, or memory
      130, 143  SIGINT or SIGTERM ended it

    \b
    Examples:
      koordebpf demo                      a hog is evicted
      koordebpf demo --story page-cache   page cache fills the node: no eviction
      koordebpf demo --story own-limit    a pod thrashes in its limit: no eviction
      koordebpf demo --json | tail -1     the verdict and every number
    """
    from koordebpf.demo.screen import JsonLines, Screen
    from koordebpf.demo.story import LIMIT_BYTES, STORIES, Interrupted, check_host, run_story
    from koordebpf.demo.verdict import judge

    chosen = STORIES[story]  # type: ignore[index]  # click's choice
    teller = JsonLines(sys.stdout) if as_json else Screen(sys.stdout, verbose=verbose)
    check_host()
    teller.begin(chosen, LIMIT_BYTES)
    try:
        facts = run_story(chosen, teller.tell)
    except Interrupted as interrupted:
        echo(f"koordebpf: {interrupted}", err=True)
        sys.exit(128 + interrupted.number)
    verdict = judge(facts)
    teller.end(facts, verdict)
    sys.exit(0 if verdict.is_as_it_should_be else 1)
