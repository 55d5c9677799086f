"""`koordebpf plan`: the decision for one frame."""

from __future__ import annotations

import sys

import click

from koordebpf.cli.echo import echo, echo_json, echo_object
from koordebpf.cli.inputs import read_input

_HELP = """Print the decision for one recorded frame, and why not another one.

FRAME.json holds Kubernetes' own objects (pods, node, nodeSLO or sloControllerConfig) and what was measured beside
them; - reads it from standard input. Nothing is done, and the same frame always gives the same answer. A line of an
agent's --frames is one too: it is decided under that agent's settings, and the guards that were closed are named. So
is a round of a recording (koordebpf record, or the folder of an agent's recorder): --decision or --at says which;
default: the last decision.

With --diff, --set or --feature-gates the frame is decided twice, as it is and under the settings that are given,
and what changes stands side by side.

Beside the evictions it shows what best-effort pods would be left of the CPUs: which amount, out of what, and which
files would be written. Where the frame has no state of it, that is the first decision of an agent that has just
started. Of each other strategy whose feature gate is on it shows why, what it would write, and of which pods it
would take memory or move tasks. In a frame of `top --frame` each of them is due; in a round of an agent those are
that measured in it, most each 10 s. With a --config whose deadMan.action is count or kill it shows whom the dead
man's switch would kill, and why.

\b
Examples:
  koordebpf plan incident.json
  koordebpf plan --json - < incident.json | jq '.features[0].victims'
  koordebpf plan incident.json --set memoryEvictThresholdPercent=85
  koordebpf plan incident.json --set eviction.preferAggressor=false
  koordebpf plan incident.json --set suppress.policy=cpuIdle
  koordebpf plan incident.json --diff nodeslo.yaml
  tail -n 1 frames.jsonl | koordebpf plan -
  koordebpf plan node.rounds --decision 3
  koordebpf plan incident.json --feature-gates MemoryEvict=true
  koordebpf top --frame | koordebpf plan - --feature-gates CPUBurst=true
  koordebpf plan --schema frame > frame.schema.json
"""


@click.command(help=_HELP)
@click.argument("frame", required=False, metavar="FRAME.json")
@click.option("--json", "as_json", is_flag=True, help="Print the whole plan as JSON.")
@click.option(
    "--schema",
    type=click.Choice(["frame", "tick", "plan", "diff"]),
    help="Print the JSON Schema of a frame, an agent's round, a plan or a comparison and stop.",
)
@click.option("--ranking", default=10, show_default=True, type=click.IntRange(min=0), help="Candidates to show.")
@click.option("--decision", type=int, metavar="N", help="Of a recording or --frames: decision N; -1 is the last.")
@click.option("--at", metavar="TIME", help="Of a recording: the last round at or before this time.")
@click.option("--ladder", is_flag=True, help="Show what each rung would do, also of those that are not configured.")
@click.option("--config", metavar="CONFIG.yaml", help="The agent's configuration file. Default: its defaults.")
@click.option(
    "--diff",
    "files",
    multiple=True,
    metavar="OTHER.yaml",
    help="Compare: under this NodeSLO, ConfigMap slo-controller-config (slo.configMap of --config) or agent's"
    " configuration file.",
)
@click.option(
    "--set",
    "entries",
    multiple=True,
    metavar="SETTING=VALUE",
    help="Compare: with this field of resourceUsedThresholdWithBE, or the agent's eviction.…, suppress.… or deadMan.…",
)
@click.option("--strict", is_flag=True, help="Refuse a NodeSLO or ConfigMap with fields that nothing reads.")
@click.option("--feature-gates", multiple=True, metavar="NAME=BOOL", help="Compare: with these feature gates.")
def plan(
    frame: str | None,
    as_json: bool,
    schema: str | None,
    ranking: int,
    decision: int | None,
    at: str | None,
    ladder: bool,
    config: str | None,
    files: tuple[str, ...],
    entries: tuple[str, ...],
    strict: bool,
    feature_gates: tuple[str, ...],
) -> None:
    """Decide one frame, once or under two settings, and print what came of it."""
    if schema is not None:
        echo_json(_schema(schema), indent=2)
        return
    if frame is None:
        raise click.UsageError("Missing argument 'FRAME.json'.")

    from koordebpf.report.pages.plan import plan_page
    from koordebpf.report.pages.plan_diff import diff_page, plan_diff
    from koordebpf.tools.plan import case_changes, with_entries, with_feature_gates, with_file
    from koordebpf.tools.recorder.rounds import case_at

    case = case_at(frame, decision, at)
    if config is not None:
        case = with_file(case, config, read_input(config))
    decided, doubts, unknown = case.plan(), case.doubts, case.unknown_fields
    if files or entries or feature_gates:
        other = case
        for file in files:
            other = with_file(other, file, read_input(file))
        other = with_feature_gates(with_entries(other, entries), feature_gates)
        unknown = other.unknown_fields
        diff = plan_diff(decided, other.plan(), case_changes(case, other))
        doubts = other.doubts
        if as_json:
            echo_json(diff, indent=2)
        else:
            echo(diff_page(diff))
    elif as_json:
        echo_object("plan", decided, indent=2)
    else:
        echo(plan_page(decided, ranking, with_ladder=ladder))
    for doubt in (*doubts, *unknown):
        echo(f"koordebpf: {doubt}", err=True)
    if strict and unknown:
        sys.exit(2)


def _schema(of: str) -> object:
    from koordebpf.cli.schemas import object_schema
    from koordebpf.decision.frames import frame_schema, tick_frame_schema

    if of in ("plan", "diff"):
        return object_schema("plan" if of == "plan" else "plan-diff")
    return frame_schema() if of == "frame" else tick_frame_schema()
