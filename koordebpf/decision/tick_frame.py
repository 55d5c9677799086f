"""`TickFrame`: everything that one round of an agent decides from, as one value. Pure."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from koordebpf.decision.strategies import StrategySettings
from koordebpf.policy.evict.pending import EvictedPods
from koordebpf.policy.evict.settings import EvictSettings
from koordebpf.policy.guards import EmergencySettings, GuardLimits
from koordebpf.policy.ladder.escalation import LadderMemory
from koordebpf.state.guard_facts import GuardFacts
from koordebpf.state.view import Frame


class TickSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The agent's settings that a round reads. `kill_after_ns` None: a pod that is overdue is not killed."""

    eviction: EvictSettings = EvictSettings()
    strategies: StrategySettings = StrategySettings()
    guards: GuardLimits = GuardLimits()
    emergency: EmergencySettings = EmergencySettings()
    kill_after_ns: int | None = None


class TickFrame(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One round of an agent, before it decides. `frame` alone is what `koordebpf plan` decides from.

    `is_round_due`   a shortage may be acted on now; else it is only judged.
    `has_cpu`        the CPUs were measured, and pods and Node are known: strategies that need them are asked.
    `evicted`        pods that are killed when they are overdue.
    `ladder`         None: there is no ladder.
    `states`         what each strategy remembers, by name.
    `listed_cgroups` cgroup of each pod, by UID, as of the last good list of pods, while the API server is lost; None:
                     it is not, or nothing is done without it.
    """

    schema: Literal["koordebpf.tick/v1"] = "koordebpf.tick/v1"
    frame: Frame
    settings: TickSettings
    guards: GuardFacts
    is_round_due: bool = True
    has_cpu: bool = False
    evicted: EvictedPods = EvictedPods()
    ladder: LadderMemory | None = None
    states: dict[str, Any] = {}
    listed_cgroups: dict[str, int | None] | None = None
