"""metav1.LabelSelector: which nodes an entry of the ConfigMap is for.

Source: k8s.io/apimachinery pkg/apis/meta/v1, LabelSelectorAsSelector.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from koordebpf.errors import ConfigError
from koordebpf.slo.convert import member


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str], path: str) -> bool:
    """Tell whether a metav1.LabelSelector matches; an absent one matches nothing, an empty one everything.

    A selector that Kubernetes itself would refuse (unknown operator, In without values) matches nothing: Koordinator
    skips such an entry.

    Raises: ConfigError: a value has the wrong type.
    """
    if selector is None:
        return False
    wanted = member(selector, "matchLabels", path) or {}
    for key, value in wanted.items():
        if not isinstance(value, str):
            raise ConfigError(f"{path}.matchLabels.{key}", value, "must be a string")
    expressions = _array(selector, "matchExpressions", path)
    fits = [_fits(each, labels, f"{path}.matchExpressions[{index}]") for index, each in enumerate(expressions)]
    return all(labels.get(key) == value for key, value in wanted.items()) and all(fits)


def _fits(expression: object, labels: Mapping[str, str], path: str) -> bool:
    if not isinstance(expression, dict):
        raise ConfigError(path, expression, "must be an object")
    key, operator, values = expression.get("key"), expression.get("operator"), _array(expression, "values", path)
    if not isinstance(key, str):
        raise ConfigError(f"{path}.key", key, "must be a string")
    if not all(isinstance(value, str) for value in values):
        raise ConfigError(f"{path}.values", values, "must be an array of strings")
    match operator:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return bool(values) and labels.get(key) not in values
        case "Exists":
            return not values and key in labels
        case "DoesNotExist":
            return not values and key not in labels
        case _:
            return False


def _array(of: Mapping[str, Any], name: str, path: str) -> list[Any]:
    value = of.get(name)
    if value is not None and not isinstance(value, list):
        raise ConfigError(f"{path}.{name}", value, "must be an array")
    return value or []
