"""The annotation of block IO: what it asks for, and what is refused."""

from __future__ import annotations

import pytest

from koordebpf.errors import ConfigError
from koordebpf.slo.strategies.resource_qos import Block, IOConfig
from koordebpf.strategies.block_io.values import MAX_BLOCKS, annotated_blocks


def test_its_blocks() -> None:
    text = '{"blocks": [{"name": "data", "type": "podvolume", "ioCfg": {"readIOPS": 5}}, {"name": "vg"}]}'
    assert annotated_blocks(text) == (Block("data", "podvolume", IOConfig(readIOPS=5)), Block("vg"))


@pytest.mark.parametrize("text", ["", "{}", '{"blocks": []}', '{"blocks": null}', '{"other": 1}'])
def test_one_that_asks_for_nothing(text: str) -> None:
    assert annotated_blocks(text) == ()


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("[]", "Expected `object`"),
        ('{"blocks": [{"ioCfg": {"readIOPS": 1.5}}]}', "readIOPS"),
        ("x" * 40_000, "no longer than"),
        ('{"blocks": [%s{}]}' % ("{}, " * MAX_BLOCKS), "must be 32 at the most"),
    ],
)
def test_what_cannot_be_read_is_named(text: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule) as refused:
        annotated_blocks(text)
    assert "koordinator.sh/blkioQOS" in str(refused.value)
    assert len(str(refused.value)) < 400
