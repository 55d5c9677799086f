"""Objects of Kubernetes as they are decoded: what the API server leaves out."""

from __future__ import annotations

import inspect
from types import ModuleType

import msgspec
import pytest

from koordebpf.kube.cache import cnr, node_metric, objects
from koordebpf.kube.clients import lease
from koordebpf.kube.http import refusal
from koordebpf.kube.remote import pods

MODULES: tuple[ModuleType, ...] = (objects, cnr, node_metric, lease, refusal, pods)
NAMED = ("apiVersion", "kind")  # what an object is, not what is said of it


@pytest.mark.parametrize("module", MODULES, ids=lambda each: each.__name__)
def test_a_field_that_is_left_out_is_absent_zero_or_empty(module: ModuleType) -> None:
    """A Go server leaves out what is zero: omitempty."""
    kinds = [each for _, each in inspect.getmembers(module, inspect.isclass) if each.__module__ == module.__name__]
    defaults = {
        f"{kind.__name__}.{field.name}": field.default
        for kind in kinds
        if issubclass(kind, msgspec.Struct)
        for field in msgspec.structs.fields(kind)
        if field.default is not msgspec.NODEFAULT and field.name not in NAMED
    }
    said = {name: value for name, value in defaults.items() if not isinstance(value, msgspec.Struct)}
    assert said
    assert {name: value for name, value in said.items() if value} == {}
