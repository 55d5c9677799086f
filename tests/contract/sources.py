"""How the tests open an api source: with waits short enough for them; nothing asserts how long anything took."""

from __future__ import annotations

from collections.abc import Callable

from koordebpf.kube.cache.reflector import Pace
from koordebpf.kube.sources.api import ApiSource

PACE = Pace(first_s=0.02, cap_s=0.05, slow_s=0.05, watch_s=30, grace_s=30.0, answer_s=10.0)
Open = Callable[..., ApiSource]
