"""The namespaces whose labels are known, and for how long that counts."""

from __future__ import annotations

from koordebpf.kube.cache.objects import ClusterState, Namespace
from koordebpf.units import format_ns


class NamespaceLabels:
    """Labels count for `max_age_ns` after the source was last sure of them; None: no caller asks for them."""

    def __init__(self, max_age_ns: int | None) -> None:
        self._max_age_ns = max_age_ns
        self._asked_ns: int | None = None
        self.namespaces: tuple[Namespace, ...] = ()  # of which the labels are known
        self.problem: str | None = None

    def look(self, state: ClusterState, now_ns: int) -> bool:
        """Forget labels that are too old, or take those that are not; tell whether that changed what is wrong."""
        max_age_ns = self._max_age_ns
        if max_age_ns is None:
            return False
        if self._asked_ns is None:
            self._asked_ns = now_ns
        since_ns = self._asked_ns if state.namespaces is None else state.namespaces_since_ns
        is_late = since_ns is not None and now_ns - since_ns > max_age_ns
        self.namespaces = () if is_late or state.namespaces is None else state.namespaces
        problem = None
        if is_late:
            problem = (
                f"namespaces: their labels have not been known for {format_ns(max_age_ns)}: every exemption counts"
                " where eviction.exemptions selects by label"
            )
        if problem == self.problem:
            return False
        self.problem = problem
        return True
