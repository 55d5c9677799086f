"""What deploy/monitoring rests on: the rules, the metrics that there are, and promtool, which judges expressions."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from typing import Any

import yaml

from tests.deploy.programs import promtool
from tests.deploy.rendered import DEPLOY

MONITORING = DEPLOY / "monitoring"
RULES = MONITORING / "rules.yaml"
ROOT = DEPLOY.parent


def every_rule() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def recorded() -> set[str]:
    """Return the names of the series that rules record."""
    return {rule["record"] for rule in every_rule() if "record" in rule}


def promtool_says(*arguments: object) -> str:
    done = subprocess.run([promtool(), *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def metrics() -> Iterator[tuple[str, set[str]]]:
    """Yield each metric of deploy/metrics.md with its labels; the buckets of a histogram by their own name."""
    for name, kind, labels in re.findall(
        r"^\| `(\w+)` \| (\w+) \| (.*?) \|", (DEPLOY / "metrics.md").read_text(), re.M
    ):
        own = set(re.findall(r"`(\w+)`", labels))
        yield (f"{name}_bucket", own | {"le"}) if kind == "histogram" else (name, own)
    # Those of a QoS strategy are on its page, without their labels.
    for page in sorted((ROOT / "docs/qos").glob("*.md")):
        yield from (
            (name, {"result", "state"}) for name in re.findall(r"^\| `(koordebpf_\w+)` \|", page.read_text(), re.M)
        )


def selectors(expr: str) -> Iterator[tuple[str, set[str]]]:
    """Yield each metric of an expression with the labels that it is chosen by."""
    for name, _, matchers in re.findall(r"\b((?:koordebpf|koordlet|process)_\w+|up\b)({([^}]*)})?", expr):
        yield name, set(re.findall(r"(\w+)[=!]~?", matchers)) - {""}
