"""What an eviction plugin answers: the messages of evictionplugin.v1alpha1 as values.

A plugin's answer is a measurement: it is in the round's frame, so that a replay decides from the same. The plugins of
this agent give the same values without a wire.

Source: katalyst-api pkg/protocol/evictionplugin/v1alpha1/api.proto.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Met = Literal["soft", "hard"]
Operator = Literal["less_than", "greater_than"]
ConditionKind = Literal["node", "cnr"]


class Condition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A condition of the node that is met, and the taint effects it asks for.

    `effects` of kind node: NoSchedule, PreferNoSchedule, NoExecute; of kind cnr: `reclaimed_cores/<effect>`.
    """

    name: str
    kind: ConditionKind
    effects: tuple[str, ...] = ()


class Threshold(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A threshold that is met. `grace_s` is how long it has to be before a pod is evicted; 0 or less: at once.

    `candidates` are UIDs of the pods that the plugin would choose from; none: of all.
    """

    met: Met
    scope: str
    value: float
    observed: float
    operator: Operator = "less_than"
    grace_s: int = 0
    condition: Condition | None = None
    candidates: tuple[str, ...] = ()


class EvictAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A pod that a plugin wants evicted whatever its threshold says.

    `grace_s` None: the pod's own; 0: at once; negative: the eviction is refused.
    """

    uid: str
    reason: str
    is_forced: bool = False
    grace_s: int | None = None


class TopPods(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The pods that a plugin chose for its threshold; `grace_s` as in `EvictAsked`.

    `waits`: why it chose none yet, in a sentence: what is missing is already coming back.
    """

    uids: tuple[str, ...]
    grace_s: int | None = None
    waits: str | None = None


class PluginAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What one plugin answered in one round.

    `threshold` None: not met. `top` None: it was not asked for. `problem`: why there is no answer, or only a part.
    `conditions` are those of pods it wants evicted, beside the threshold's.
    """

    plugin: str
    threshold: Threshold | None = None
    evict: tuple[EvictAsked, ...] = ()
    conditions: tuple[Condition, ...] = ()
    top: TopPods | None = None
    problem: str | None = None
