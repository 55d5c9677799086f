"""Of each type that is decoded from Kubernetes a field that is null is one that is not there, at every depth."""

from __future__ import annotations

import ast
import importlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koordebpf.decoding import Decoder, convert, without_nulls
from tests.rules.modules import MODULES, PACKAGE, tree
from tests.support.values.documents import documents


def _decodes(module: ast.Module) -> bool:
    return any(isinstance(node, ast.ImportFrom) and node.module == "koordebpf.decoding" for node in ast.walk(module))


# What is given to `decoder`, or to a function that gives it on.
def _given(module: ast.Module) -> set[str]:
    given = [each for node in ast.walk(module) if isinstance(node, ast.Call) for each in node.args]
    return {node.id for each in given for node in ast.walk(each) if isinstance(node, ast.Name)}


def _structs() -> dict[str, type[msgspec.Struct]]:
    found = {}
    for path in MODULES:
        module = tree(path)
        if not _decodes(module):
            continue
        name = ".".join(("koordebpf", *path.relative_to(PACKAGE).with_suffix("").parts))
        names = vars(importlib.import_module(name))
        for each in map(names.get, _given(module)):
            if isinstance(each, type) and issubclass(each, msgspec.Struct):
                found[f"{each.__module__}.{each.__qualname__}"] = each
    return found


STRUCTS = _structs()


def outcome(kind: Any, document: object) -> object:
    try:
        return Decoder(kind).decode(msgspec.json.encode(document))
    except msgspec.ValidationError:
        return "refused"


def test_types_of_every_client_are_found() -> None:
    expected = {
        "koordebpf.kube.cache.objects.Pod",
        "koordebpf.kube.cache.cnr.CustomNodeResource",
        "koordebpf.kube.clients.kubelet._Configz",
        "koordebpf.kube.clients.lease.Lease",
        "koordebpf.kube.sources.cpu_manager._State",
        "koordebpf.kube.sources.pdbs._Pdb",
        "koordebpf.controller.batch.facts._Topology",
        "koordebpf.slo.pods.cpu_placement._Reservation",
    }
    assert expected <= set(STRUCTS)


@pytest.mark.parametrize("name", sorted(STRUCTS))
@given(data=st.data())
@settings(max_examples=25)
def test_null_is_absent(name: str, data: st.DataObject) -> None:
    kind = STRUCTS[name]
    document = data.draw(documents(kind))
    assert outcome(kind, document) == outcome(kind, without_nulls(document))


@pytest.mark.parametrize("name", sorted(STRUCTS))
def test_each_field_alone(name: str) -> None:
    for each in msgspec.structs.fields(STRUCTS[name]):
        if each.type is msgspec.Raw:  # text that is decoded later, by another type
            continue
        assert outcome(STRUCTS[name], {each.encode_name: None}) == outcome(STRUCTS[name], {}), each.name


@given(data=st.data())
@settings(max_examples=100)
def test_a_document_of_yaml_is_as_one_of_json(data: st.DataObject) -> None:
    kind = STRUCTS["koordebpf.kube.cache.objects.Pod"]
    document = data.draw(documents(kind))
    try:
        found: object = convert(document, kind)
    except msgspec.ValidationError:
        found = "refused"
    assert found == outcome(kind, document)
