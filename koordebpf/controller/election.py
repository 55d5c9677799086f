"""One leader of several controllers, by a Lease. Its thread renews it; who writes asks `is_leader` before each write.

The kubernetes package has an election too. It cannot be stopped and does not give the Lease back, its requests have no
time-out (a leader whose request hangs keeps leading), it judges by the wall clock, and its models cost 40 MB.
"""

from __future__ import annotations

import functools
import logging
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from koordebpf.errors import KubeBusy, KubeConflict, KubeError, KubeGone
from koordebpf.kernel.io.worker import Supervisor
from koordebpf.kube.clients.lease import Lease, LeaseClient, LeaseSpec, micro_time
from koordebpf.units import NS_PER_S

log = logging.getLogger("koordebpf")

_RELEASE_S: Final = 1.0  # of each request
_JOIN_S: Final = 4.0  # a request in flight, and the release


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """Times of an election, in seconds.

    Why: client-go's defaults, as every controller of Kubernetes has them. Between `renew_s`, after which a leader stops
    writing, and `lease_s`, after which another may begin, a write that was sent has the time to end.
    """

    lease_s: int = 15
    renew_s: float = 10.0
    retry_s: float = 2.0


class Election:
    """One candidate. `changed` is called from its thread when it begins or ends to lead."""

    def __init__(
        self, client: LeaseClient, identity: str, changed: Callable[[], None], terms: Terms | None = None
    ) -> None:
        self.identity = identity
        self.holder = ""  # as last seen
        self.problem = ""
        self._client = client
        self._changed = changed
        self._terms = terms or Terms()
        self._leads_until_ns = 0
        self._was_leader = False  # as last reported
        self._lease: Lease | None = None  # the version last seen …
        self._seen_ns = 0  # … and when it was first
        self._stop = threading.Event()
        supervisor = Supervisor("election")
        self._thread = supervisor.thread(functools.partial(self._run, supervisor), again=True)

    def start(self) -> None:
        """Stand for election."""
        self._thread.start()

    def is_leader(self) -> bool:
        """Tell whether this process is the leader and no other can be."""
        return time.monotonic_ns() < self._leads_until_ns

    def close(self) -> None:
        """End, and give the Lease back so that another need not wait for it to expire."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(_JOIN_S)

    def _run(self, supervisor: Supervisor) -> None:
        while not self._stop.is_set():
            wait_s = self._terms.retry_s * random.uniform(0.8, 1.0)
            try:
                self._try()
                self.problem = ""
                supervisor.worked()
            except KubeError as error:
                self.problem = f"lease: {error}"
                if isinstance(error, KubeConflict | KubeGone):
                    self._lease = None  # another was faster: read what it wrote
                elif isinstance(error, KubeBusy):
                    wait_s = max(wait_s, min(error.retry_after_s or 0.0, self._terms.renew_s))
            except Exception as error:
                supervisor.failed(error)
                self.problem = "lease: internal error, see the log"
            if self.is_leader() != self._was_leader:
                self._was_leader = not self._was_leader
                supervisor.call(functools.partial(self._tell, self._was_leader))
            self._stop.wait(wait_s)
        supervisor.call(self._release)

    def _tell(self, leads: bool) -> None:
        log.info("%s %s", self.identity, "leads" if leads else f"leads no more: {self.problem or self.holder}")
        self._changed()

    def _try(self) -> None:
        # A leader knows the version that it wrote itself, and needs no look at it.
        if not (self._lease and self._lease.spec.holderIdentity == self.identity and self.is_leader()):
            self._check()
        asked_ns = time.monotonic_ns()
        now = micro_time(datetime.now(UTC))
        if self._lease is None:
            spec = LeaseSpec(self.identity, self._terms.lease_s, now, now, 0)
            self._acquire(self._client.create(spec, timeout_s=self._timeout_s()), asked_ns)
            return
        old = self._lease.spec
        is_mine = old.holderIdentity == self.identity
        if not is_mine and old.holderIdentity and asked_ns < self._seen_ns + (old.leaseDurationSeconds or 0) * NS_PER_S:
            return
        spec = LeaseSpec(
            self.identity,
            self._terms.lease_s,
            old.acquireTime if is_mine else now,
            now,
            (old.leaseTransitions or 0) + (not is_mine),
        )
        self._acquire(self._client.update(self._lease, spec, timeout_s=self._timeout_s()), asked_ns)

    # The clocks of two machines differ: a Lease is expired when it has not changed for its duration by our own clock.
    def _check(self) -> None:
        try:
            lease = self._client.read(timeout_s=self._timeout_s())
        except KubeGone:
            self._lease, self.holder = None, ""
            return
        known = self._lease
        self.holder = lease.spec.holderIdentity or ""
        if self.holder != self.identity:
            self._leads_until_ns = 0
        if known is None or known.metadata.resourceVersion != lease.metadata.resourceVersion:
            self._lease, self._seen_ns = lease, time.monotonic_ns()

    # Counted from before the request was sent: the others count from when they see it, which is later.
    def _acquire(self, lease: Lease, asked_ns: int) -> None:
        self._lease, self.holder, self._seen_ns = lease, self.identity, asked_ns
        self._leads_until_ns = asked_ns + int(self._terms.renew_s * NS_PER_S)

    def _timeout_s(self) -> float:
        return self._terms.renew_s / 2

    def _release(self) -> None:
        was_leader, self._leads_until_ns = self.is_leader(), 0
        if not was_leader or self._lease is None:
            return
        try:
            try:
                self._clear_holder(self._lease)
            except KubeConflict:
                lease = self._client.read(timeout_s=_RELEASE_S)
                if lease.spec.holderIdentity == self.identity:
                    self._clear_holder(lease)
        except KubeError as error:
            log.warning("the lease was not released, and expires within %d s: %s", self._terms.lease_s, error)
        else:
            log.info("%s released the lease", self.identity)

    def _clear_holder(self, lease: Lease) -> None:
        spec = msgspec.structs.replace(lease.spec, holderIdentity="", leaseDurationSeconds=1)
        self._client.update(lease, spec, timeout_s=_RELEASE_S)
