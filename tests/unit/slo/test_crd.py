"""The CRD says what the types say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from koordebpf.slo.manager.crd import nodeslo_crd
from koordebpf.slo.strategies.resource_qos import DEFAULT_RESOURCE_QOS
from koordebpf.slo.strategies.resource_threshold import ResourceThresholdStrategy


def spec_schema() -> dict[str, Any]:
    (version,) = nodeslo_crd()["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def nodes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for inner in schema.get("properties", {}).values():
        yield from nodes(inner)
    for name in ("items", "additionalProperties"):
        if name in schema:
            yield from nodes(schema[name])


def test_every_field_that_is_read_is_in_it_with_its_range() -> None:
    parts = spec_schema()["properties"]
    threshold = parts["resourceUsedThresholdWithBE"]["properties"]
    assert set(threshold) == set(ResourceThresholdStrategy.__struct_fields__)
    assert threshold["memoryEvictThresholdPercent"] == {"type": "integer"}
    assert parts["cpuBurstStrategy"]["properties"]["policy"]["enum"] == [
        "auto",
        "cfsQuotaBurstOnly",
        "cpuBurstOnly",
        "none",
    ]
    assert parts["systemStrategy"]["properties"]["minFreeKbytesFactor"] == {"type": "integer", "minimum": 1}
    assert parts["systemStrategy"]["properties"]["totalNetworkBandwidth"] == {"x-kubernetes-int-or-string": True}
    memory = parts["resourceQOSStrategy"]["properties"]["beClass"]["properties"]["memoryQOS"]["properties"]
    assert memory["wmarkMinAdj"] == {"type": "integer", "minimum": -25, "maximum": 50}
    assert set(parts["resourceQOSStrategy"]["properties"]) == set(DEFAULT_RESOURCE_QOS.__struct_fields__)


def test_it_is_structural() -> None:
    for node in nodes(spec_schema()):
        assert "$ref" not in node
        assert ("type" in node) != ("x-kubernetes-int-or-string" in node)
        assert not {"properties", "additionalProperties"} <= set(node)


def test_what_is_free_is_kept() -> None:
    parts = spec_schema()["properties"]
    assert parts["extensions"] == {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    assert parts["systemStrategy"]["properties"]["schedFeatures"]["additionalProperties"] == {"type": "boolean"}
    assert spec_schema()["x-kubernetes-preserve-unknown-fields"] is True
