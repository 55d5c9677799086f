"""`koordebpf plan`: the decision for one frame."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path

import click
import msgspec

from koordebpf.decide.plan import Candidate, FeaturePlan, Plan, encode_plan, plan_schema
from koordebpf.decide.rounds import decide
from koordebpf.errors import ConfigError
from koordebpf.state.build import view_of_frame
from koordebpf.state.frame import decode_frame, frame_schema
from koordebpf.units import format_bytes

_COLUMNS = 80


@click.command()
@click.argument("frame", required=False, metavar="FRAME.json")
@click.option("--json", "as_json", is_flag=True, help="Print the whole plan as JSON.")
@click.option(
    "--schema", type=click.Choice(["frame", "plan"]), help="Print the JSON Schema of a frame or plan and stop."
)
@click.option("--ranking", default=10, show_default=True, type=click.IntRange(min=0), help="Candidates to show.")
def plan(frame: str | None, as_json: bool, schema: str | None, ranking: int) -> None:
    """Print the decision for one recorded frame, and why not another one.

    FRAME.json holds Kubernetes' own objects (pods, node, nodeSLO or sloControllerConfig) and what was measured beside
    them; - reads it from standard input. Nothing is done, and the same frame always gives the same answer.

    \b
    Examples:
      koordebpf plan incident.json
      koordebpf plan --json - < incident.json | jq '.features[0].victims'
      koordebpf plan --schema frame > frame.schema.json
    """
    if schema is not None:
        click.echo(json.dumps(frame_schema() if schema == "frame" else plan_schema(), indent=2))
        return
    if frame is None:
        raise click.UsageError("Missing argument 'FRAME.json'.")
    decided = decide(view_of_frame(decode_frame(_read(frame), frame)))
    if as_json:
        click.echo(msgspec.json.format(encode_plan(decided), indent=2))
    else:
        click.echo(_text(decided, ranking))


def _read(path: str) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read()
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(path, error.strerror, "must be a readable file") from error


def _text(plan: Plan, ranking: int) -> str:
    blocks = [textwrap.fill(plan.sentence, _COLUMNS)]
    for feature in plan.features:
        blocks += [_numbers(feature), _ranking(feature, ranking), _not_done(feature)]
    return "\n\n".join(block for block in blocks if block)


def _numbers(feature: FeaturePlan) -> str:
    verdict, evidence = feature.verdict, feature.verdict.evidence
    lines = [verdict.feature if verdict.skipped is None else f"{verdict.feature}: skipped ({verdict.skipped})"]
    if evidence is not None:
        lines.append(_row("capacity", evidence.capacity_bytes))
        lines.append(_row("used", evidence.used_bytes, f"{evidence.used_percent} %"))
        if evidence.threshold_bytes is not None:
            lines.append(_row("threshold", evidence.threshold_bytes, f"{evidence.threshold_percent} %"))
        if evidence.lower_bytes is not None:
            lines.append(_row("lower", evidence.lower_bytes, f"{evidence.lower_percent} %"))
    if verdict.fires:
        other = verdict.koordinator_need_bytes
        note = f"Koordinator: {format_bytes(other)}" if other != feature.need_bytes else ""
        lines.append(_row("need", feature.need_bytes, note))
        lines.append(_row("coming back", feature.pending_bytes))
        lines.append(_row("credit", feature.credit_bytes, _victims(len(feature.victims))))
        if feature.missing_bytes:
            lines.append(_row("missing", feature.missing_bytes))
    return "\n".join(lines)


def _row(name: str, size_bytes: int, note: str = "") -> str:
    return f"  {name:<12}{format_bytes(size_bytes):>9}  {note}".rstrip()


def _ranking(feature: FeaturePlan, count: int) -> str:
    shown = feature.candidates[:count]
    if not shown:
        return ""
    going = {victim.candidate.uid for victim in feature.victims}
    differs = any(each.credit_bytes != each.koordinator_credit_bytes for each in shown)
    header = ["rank", "pod", "priority", "used", "credit", "growth/s", *(["Koordinator"] if differs else [])]
    rows = [[f"{'*' if each.uid in going else ' '}{each.rank:>3}", *_cells(each, differs)] for each in shown]
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    others = sum(widths) - widths[1] + 2 * (len(widths) - 1)
    widths[1] = min(widths[1], _COLUMNS - others)
    lines = []
    for row in [header, *rows]:
        cells = [
            _cut(row[1], widths[1]).ljust(widths[1]) if column == 1 else cell.rjust(widths[column])
            for column, cell in enumerate(row)
        ]
        lines.append("  ".join(cells).rstrip())
    notes = ["* goes"] if going else []
    if len(feature.candidates) > count:
        notes.append(f"{len(feature.candidates) - count} more candidates")
    if notes:
        lines.append("; ".join(notes))
    return "\n".join(lines)


def _cells(each: Candidate, differs: bool) -> list[str]:
    return [
        f"{each.namespace}/{each.name}",
        "-" if each.priority is None else str(each.priority),
        "-" if each.used_bytes is None else format_bytes(each.used_bytes),
        format_bytes(each.credit_bytes),
        "-" if each.growth_bytes_per_s is None else format_bytes(int(each.growth_bytes_per_s)),
        *([format_bytes(each.koordinator_credit_bytes)] if differs else []),
    ]


def _cut(text: str, width: int) -> str:
    # The end of a pod's name tells it from its siblings.
    return text if len(text) <= width else f"{text[: width // 2 - 1]}…{text[-(width - width // 2) :]}"


def _not_done(feature: FeaturePlan) -> str:
    if not feature.excluded:
        return ""
    lines = [
        textwrap.fill(f"{pod.namespace}/{pod.name}: {pod.why}", _COLUMNS, initial_indent="  ", subsequent_indent="    ")
        for pod in feature.excluded
    ]
    return "\n".join(["best-effort, but no candidates:", *lines])


def _victims(count: int) -> str:
    return "" if count == 0 else "1 victim" if count == 1 else f"{count} victims"
