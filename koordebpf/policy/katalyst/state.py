"""What the manager remembers from one round to the next, and what it calls plugins outside for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from koordebpf.policy.katalyst.clocks import LastMet, MetSince
from koordebpf.policy.katalyst.requests import Asked, Past, Wanted
from koordebpf.state.katalyst.measured import PluginAnswer, TopAsk


class RemoteRound(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The round of plugins outside the process: which call is open, and what the one before it brought.

    `call` counts calls, so that an answer is known to be of this one.
    """

    call: int = 0
    began_ns: int | None = None  # None: no call is open
    clocks: Mapping[str, MetSince] = {}
    answers: tuple[PluginAnswer, ...] = ()  # of the call for thresholds, while the one for pods is open


class RemoteCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What plugins outside are to be called for: thresholds and pods, or with `asks` the top pods."""

    number: int
    candidates: tuple[str, ...]
    asks: tuple[TopAsk, ...] | None = None


class Queue(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the round that began at `began_ns` asks for, and what of it is sent.

    `inside`, `outside` what plugins asked for last.
    `forced`, `soft`    what may be sent now, in order.
    `sent`              pods of this round that were sent, and when.
    `used`              places that are taken; `is_soft_used`: the soft one of the round is sent.
    `has_soft_place`    the forced ones leave a place for it.
    """

    began_ns: int = 0
    inside: Asked = Asked()
    outside: Asked = Asked()
    forced: tuple[Wanted, ...] = ()
    soft: tuple[Wanted, ...] = ()
    sent: Mapping[str, int] = {}
    used: int = 0
    is_soft_used: bool = False
    has_soft_place: bool = True


class ManagerState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the manager remembers."""

    synced_ns: int | None = None  # the last round of the plugins inside
    pressing: tuple[str, ...] = ()  # plugins inside whose memory was short at the last look
    clocks: Mapping[str, MetSince] = {}  # of the plugins inside
    conditions: tuple[LastMet, ...] = ()
    inner: Mapping[str, Any] = {}  # what each plugin inside remembers, by name
    queue: Queue = Queue()
    remote: RemoteRound = RemoteRound()
    past: Past = Past()
    waits: tuple[str, ...] = ()  # what plugins inside waited for in their last round, and whom they passed over
