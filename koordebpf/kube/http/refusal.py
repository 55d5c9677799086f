"""What an answer other than success means, as an error of koordebpf's own tree, and the wait before the next."""

from __future__ import annotations

import http.client
import random
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import msgspec

from koordebpf.decoding import decoder
from koordebpf.errors import KubeBusy, KubeConflict, KubeDenied, KubeError, KubeGone
from koordebpf.kube.body import MALFORMED

# The longest Retry-After that is believed. Why 300 s: what is to be asked then is about memory that is short now.
_BELIEVED_S: Final = 300.0


def jittered(wait_s: float) -> float:
    """Shorten a wait by up to a half at random.

    It keeps the agents of a thousand nodes from returning together to an API server that was just restarted.
    """
    return wait_s * random.uniform(0.5, 1.0)


class Backoff:
    """Waits that double from `first_s` up to `cap_s`, each with jitter."""

    def __init__(self, first_s: float, cap_s: float) -> None:
        self._first_s = first_s
        self._cap_s = cap_s
        self._next_s = first_s

    def next_s(self) -> float:
        """Return the wait before the next try."""
        ceiling_s = self._next_s
        self._next_s = min(self._next_s * 2, self._cap_s)
        return jittered(ceiling_s)

    def reset(self) -> None:
        """Start over: something worked."""
        self._next_s = self._first_s


class StatusCause(msgspec.Struct, frozen=True):
    """metav1.StatusCause."""

    reason: str = ""
    message: str = ""


class StatusDetails(msgspec.Struct, frozen=True):
    """metav1.StatusDetails."""

    kind: str = ""
    name: str = ""
    causes: list[StatusCause] | None = None
    retryAfterSeconds: int | None = None


class Status(msgspec.Struct, frozen=True):
    """metav1.Status: how the API server words a refusal."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


def refusal(status: int, headers: Mapping[str, str], body: bytes, verb: str, resource: str) -> KubeError:
    """Return the error that an HTTP status other than success means; `verb` and `resource` are RBAC's words."""
    try:
        said = decoder(Status).decode(body)
    except MALFORMED:
        # Priority and fairness, proxies and the kubelet answer in plain text.
        said = Status(message=body[:200].decode(errors="replace").strip())
    phrase = http.client.responses.get(status, "unknown status")
    causes = [cause.message for cause in (said.details.causes or ()) if cause.message] if said.details else []
    text = f"{verb} {resource}: {status} {phrase}: {'; '.join([said.message, *causes])}".rstrip(": ")
    match status:
        case HTTPStatus.UNAUTHORIZED | HTTPStatus.FORBIDDEN:
            # A PodDisruptionBudget whose controller lags answers 403 too, which is no matter of RBAC
            # (pkg/registry/core/pod/storage/eviction.go, checkAndDecrement).
            if said.details is not None and said.details.kind.startswith("poddisruptionbudget"):
                return KubeBusy(text, _retry_after_s(headers, said))
            # Nor is a namespace that is being deleted: it takes nothing new
            # (apiserver/pkg/admission/plugin/namespace/lifecycle).
            if said.details is not None and any(c.reason == "NamespaceTerminating" for c in said.details.causes or ()):
                return KubeGone(text, status)
            # Nor is an admission policy, whose message says what is missing
            # (apiserver/pkg/admission/plugin/policy/validating/dispatcher.go); the cause only repeats it.
            if causes and causes[0].startswith("ValidatingAdmissionPolicy "):
                return KubeDenied(f"{verb} {resource}: {status} {phrase}: {causes[0]}", verb, resource, by_policy=True)
            return KubeDenied(f"{text} (needs RBAC verb {verb} on {resource})", verb, resource)
        case HTTPStatus.NOT_FOUND | HTTPStatus.GONE:
            return KubeGone(text, status)
        case HTTPStatus.TOO_MANY_REQUESTS | HTTPStatus.SERVICE_UNAVAILABLE:
            return KubeBusy(text, _retry_after_s(headers, said))
        case HTTPStatus.CONFLICT:
            # Of all conflicts only the one on the UID means that the pod is another one now; the rest is the server's
            # bookkeeping (a PodDisruptionBudget written by two, a resourceVersion it set itself) and passes.
            # `the UID in the precondition` says the registry, `UID in precondition` the storage below it.
            if re.search("UID in (the )?precondition", said.message):
                return KubeGone(text, status)
            return KubeConflict(text, retry=said.reason != "AlreadyExists")
        case _:
            return KubeError(text, retry=status >= HTTPStatus.INTERNAL_SERVER_ERROR)


def _retry_after_s(headers: Mapping[str, str], said: Status) -> float | None:
    value = headers.get("Retry-After", "")
    if value.isascii() and value.isdigit():  # an HTTP date, which no API server sends, counts as absent
        requested_s = float(value)
    elif said.details is not None and said.details.retryAfterSeconds:
        requested_s = float(said.details.retryAfterSeconds)
    else:
        return None
    # Never earlier, and not all agents at once: the server tells each of them the same.
    return min(max(requested_s, 0.0), _BELIEVED_S) * random.uniform(1.0, 1.25)
