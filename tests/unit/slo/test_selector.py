"""Label selectors, as Kubernetes writes them."""

from __future__ import annotations

from typing import Any

import pytest

from koordebpf.errors import ConfigError
from koordebpf.slo.selector import selects

LABELS = {"pool": "batch", "tier": ""}


def expression(key: object, operator: object, *values: object) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("selector", "is_selected"),
    [
        ({}, True),
        ({"matchLabels": {"pool": "batch", "tier": ""}}, True),
        ({"matchLabels": {"pool": "web"}}, False),
        (expression("pool", "In", "batch", "web"), True),
        (expression("none", "In", "batch"), False),
        (expression("pool", "NotIn", "web"), True),
        (expression("none", "NotIn", "web"), True),
        (expression("tier", "Exists"), True),
        (expression("none", "Exists"), False),
        (expression("none", "DoesNotExist"), True),
        (expression("tier", "DoesNotExist"), False),
        (expression("pool", "Is", "batch"), False),  # Kubernetes would refuse it, and these
        (expression("pool", "In"), False),
        (expression("pool", "NotIn"), False),
        (expression("pool", "Exists", "batch"), False),
        (expression("none", "DoesNotExist", "batch"), False),
        (None, False),
    ],
)
def test_what_is_selected(selector: dict[str, Any] | None, is_selected: bool) -> None:
    assert selects(selector, LABELS, "selector") is is_selected


@pytest.mark.parametrize(
    ("selector", "path"),
    [
        ({"matchLabels": {"pool": 5}}, "selector.matchLabels.pool"),
        ({"matchLabels": ["pool"]}, "selector.matchLabels"),
        ({"matchExpressions": {}}, "selector.matchExpressions"),
        ({"matchExpressions": ["pool"]}, r"selector.matchExpressions\[0\]"),
        (expression(5, "Exists"), r"selector.matchExpressions\[0\].key"),
        (expression("pool", "In", 5), r"selector.matchExpressions\[0\].values"),
    ],
)
def test_what_is_no_selector(selector: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError, match=f"^{path}"):
        selects(selector, LABELS, "selector")
