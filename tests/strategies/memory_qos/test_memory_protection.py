"""How much of memory.min and memory.low is in effect, as the kernel works it out."""

from __future__ import annotations

import pytest

from koordebpf.strategies.memory_qos.decide import ProtectedLevel as Level
from koordebpf.strategies.memory_qos.decide import in_effect


@pytest.mark.parametrize(
    ("levels", "effective"),
    [
        ([Level(100), Level(60), Level(60)], 60),
        ([Level(0), Level(60)], 0),
        ([Level(50), Level(60)], 50),
        ([Level(50), Level(60, beside=40)], 30),
        ([Level(100), Level(50, beside=50), Level(80, beside=20)], 40),
        ([Level(None), Level(60, beside=1 << 40)], 60),
        ([Level(100), Level(None, beside=100)], 50),
        ([Level(0), Level(None)], 0),
        ([Level(None), Level(None)], None),
        ([], None),
    ],
)
def test_what_is_in_effect(levels, effective):
    assert in_effect(levels) == effective
