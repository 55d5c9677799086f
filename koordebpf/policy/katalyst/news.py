"""Which requests are not carried out, each reported once: those that are refused, and those of a dry run. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

from koordebpf.policy.katalyst.requests import Requests
from koordebpf.policy.requests import RequestNews
from koordebpf.state.view import MINUTE_NS, PodView

_MOST_A_MINUTE = 20  # Why: a plugin that names other pods each round is not to fill the audit: 9 MB a day at most
_MOST_KNOWN = 2000  # Why: as many pods as an answer may name
_LONGEST_UID = 64  # Why: a UID has 36 characters, and a plugin may send any text


class RequestKey(NamedTuple):
    """What a request is about. `code` is why it is refused, or `dry_run`."""

    plugin: str
    uid: str
    code: str


class ReportedRequests(msgspec.Struct, frozen=True):
    """What was reported and still is asked for, and how many were reported in this minute."""

    known: frozenset[RequestKey] = frozenset()
    minute_ns: int = 0
    count: int = 0


def request_news(
    before: ReportedRequests, requests: Requests, plugins: Collection[str], pods: Iterable[PodView], now_ns: int
) -> tuple[tuple[RequestNews, ...], ReportedRequests]:
    """Return the requests that were not asked for in the round before; the rest of too many follows in later rounds.

    Args:
        before: of the round before.
        requests: of this round.
        plugins: that answered in this round; of others nothing has changed.
        pods: of the node.
        now_ns: CLOCK_MONOTONIC.
    """
    names = {pod.uid: (pod.namespace, pod.name) for pod in pods}
    found: dict[RequestKey, RequestNews] = {}
    for refused in requests.refused:
        uid = refused.uid[:_LONGEST_UID]
        key = RequestKey(refused.plugin, uid, refused.code)
        namespace, name = names.get(refused.uid, ("", ""))
        found[key] = RequestNews(refused.plugin, uid, namespace, name, "refused", refused.code, refused.why)
    for wanted in requests.dry_run:
        key = RequestKey(wanted.plugin, wanted.uid, "dry_run")
        namespace, name = names.get(wanted.uid, ("", ""))
        found[key] = RequestNews(wanted.plugin, wanted.uid, namespace, name, "dry_run", "dry_run", wanted.reason)
    is_same_minute = now_ns - before.minute_ns < MINUTE_NS
    minute_ns, count = (before.minute_ns, before.count) if is_same_minute else (now_ns, 0)
    fresh = sorted(key for key in found if key not in before.known)[: max(_MOST_A_MINUTE - count, 0)]
    kept = {key for key in before.known if key.plugin not in plugins or key in found}
    known = frozenset(sorted(kept.union(fresh))[:_MOST_KNOWN])
    return tuple(found[key] for key in fresh), ReportedRequests(known, minute_ns, count + len(fresh))
