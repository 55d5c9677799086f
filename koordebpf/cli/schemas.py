"""The JSON objects that commands print with --json: the name that each has as its `schema`, and its JSON Schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from koordebpf.cli.echo import echo_json

F = TypeVar("F", bound=Callable[..., Any])
# Name → module and type. Imported only by who asks for a schema.
TYPES: Mapping[str, str] = {
    "audit": "koordebpf.store.audit_record.AuditRecord",
    "backtest": "koordebpf.jobs.prediction.backtest.Backtest",
    "demo-event": "koordebpf.demo.output.Event",
    "demo-story": "koordebpf.demo.screen.StoryLine",
    "demo-verdict": "koordebpf.demo.screen.EndLine",
    "doctor": "koordebpf.tools.doctor.page.DoctorReport",
    "metrics": "koordebpf.report.pages.series.SeriesLine",
    "metrics-kind": "koordebpf.report.pages.series.KindLine",
    "node-resources": "koordebpf.report.pages.batch.ExplainedNode",
    "plan": "koordebpf.decision.node_plan.NodePlan",
    "plan-diff": "koordebpf.report.pages.plan_diff.PlanDiff",
    "pod": "koordebpf.tools.pod_explain.ExplainedPodValues",
    "recording-summary": "koordebpf.tools.recorder.pages.RecordingSummary",
    "replay": "koordebpf.tools.recorder.replay.Replay",
    "replayed-plan": "koordebpf.tools.recorder.pages.ReplayedPlan",
    "replayed-round": "koordebpf.tools.recorder.replay.ReplayedRound",
    "request": "koordebpf.store.write_log.AuditedRequest",
    "shadow": "koordebpf.decision.what_if.week.ShadowWeek",
    "simulation": "koordebpf.tools.what_if.simulate.SimulationResult",
    "slo-problem": "koordebpf.slo.manager.webhook.Problem",
    "validation": "koordebpf.tools.what_if.simulate.Validation",
    "write": "koordebpf.store.write_log.AuditedWrite",
}


def object_schema(*names: str, is_list: bool = False) -> dict[str, Any]:
    """Return the JSON Schema of the objects of these names; of several: of any of them; `is_list`: of a list of such.

    >>> object_schema("replay")["$defs"]["Replay"]["properties"]["schema"]
    {'const': 'koordebpf.replay/v1'}
    """
    import msgspec

    from koordebpf.printable import schema_name

    schemas, definitions = msgspec.json.schema_components(
        [_type(name) for name in names], ref_template="#/$defs/{name}"
    )
    for name, schema in zip(names, schemas, strict=True):
        body = definitions[str(schema["$ref"]).rpartition("/")[2]]
        if "schema" not in body["properties"]:
            body["properties"] = {"schema": {"const": schema_name(name)}, **body["properties"]}
            body["required"] = ["schema", *body.get("required", ())]
    one: dict[str, Any] = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return {**head, **({"type": "array", "items": one} if is_list else one), "$defs": definitions}


def schema_option(*names: str, is_list: bool = False) -> Callable[[F], F]:
    """Return the option --schema of a command that prints such objects with --json."""

    def show(context: click.Context, _option: click.Parameter, is_wanted: bool) -> None:
        if is_wanted and not context.resilient_parsing:
            echo_json(object_schema(*names, is_list=is_list), indent=2)
            context.exit()

    return click.option(
        "--schema",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=show,
        help="Print the JSON Schema of what --json prints, and stop.",
    )


def _type(name: str) -> Any:
    import importlib

    module, _, kind = TYPES[name].rpartition(".")
    return getattr(importlib.import_module(module), kind)
