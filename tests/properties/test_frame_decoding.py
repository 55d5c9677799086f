"""Whatever bytes arrive, the answer is a frame or an error that we raise on purpose."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from koordebpf.decision.frames import decode_frame, encode_frame
from koordebpf.errors import ConfigError
from koordebpf.policy.decide import decide
from koordebpf.slo.manager.shapes import THRESHOLD_KEY
from koordebpf.slo.nodeslo import parse_nodeslo
from koordebpf.slo.spec import strategy_of_configmap
from koordebpf.state.build import view_of_frame
from koordebpf.state.pods.hook_pods import HooksMeasured, PodDirectory
from tests.support.values.builders import frame, pod

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
MADE = frame([pod("hog", anon=300), pod("other", anon=20)], used=850)
HOOKS = HooksMeasured((PodDirectory("hog", "kubepods/hog"),))
GOOD = json.loads(encode_frame(replace(MADE, measured=MADE.measured.with_part("runtimeHooks", HOOKS))))


def _places(value: object, path: tuple = ()) -> list[tuple]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] + [place for key, each in inner for place in _places(each, (*path, key))]


@given(st.binary(max_size=64) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_bytes(raw):
    try:
        view_of_frame(decode_frame(raw, "frame.json"))
    except ConfigError as error:
        assert re.match(r"frame\.json(:\d+:\d+)?: ", str(error))


@given(st.sampled_from(_places(GOOD)), JSON)
def test_a_good_frame_with_one_wrong_value(place, value):
    wrong = json.loads(json.dumps(GOOD))
    if not place:
        wrong = value
    else:
        parent = wrong
        for key in place[:-1]:
            parent = parent[key]
        parent[place[-1]] = value
    try:
        decide(view_of_frame(decode_frame(json.dumps(wrong).encode(), "frame.json")))
    except ConfigError as error:
        assert error.rule


@given(JSON, JSON)
def test_any_configuration(spec, strategy):
    for raw in (spec, {"spec": spec}, {"spec": {"resourceUsedThresholdWithBE": strategy}}):
        try:
            assert parse_nodeslo(json.dumps(raw).encode()).enable is not None
        except ConfigError as error:
            assert error.path
    for config in (strategy, {"clusterStrategy": strategy}, {"nodeStrategies": [{"nodeSelector": spec}]}):
        try:
            assert strategy_of_configmap({THRESHOLD_KEY: json.dumps(config)}, {"a": "b"}).enable is not None
        except ConfigError as error:
            assert error.path.startswith(THRESHOLD_KEY)
