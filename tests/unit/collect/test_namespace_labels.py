"""For how long the labels of namespaces count."""

from __future__ import annotations

from koordebpf.collect.cluster_view import NamespaceLabels
from koordebpf.kube.cache.objects import ClusterState, Namespace, ObjectMeta
from koordebpf.units import NS_PER_S

TEAM = (Namespace(ObjectMeta("team", labels={"tier": "gold"})),)


def state(namespaces: tuple[Namespace, ...] | None, since_ns: int | None = None) -> ClusterState:
    return ClusterState(1, 1, namespaces=namespaces, namespaces_since_ns=since_ns)


def test_where_no_caller_asks_nothing_is_known_and_nothing_is_wrong():
    labels = NamespaceLabels(None)
    assert not labels.refresh(state(TEAM), 0)
    assert (labels.namespaces, labels.problem) == ((), None)


def test_labels_count_until_the_source_was_not_sure_of_them_for_too_long():
    labels = NamespaceLabels(5 * NS_PER_S)
    assert not labels.refresh(state(TEAM), 0)
    assert not labels.refresh(state(TEAM, 10 * NS_PER_S), 15 * NS_PER_S)
    assert labels.namespaces == TEAM
    assert labels.refresh(state(TEAM, 10 * NS_PER_S), 15 * NS_PER_S + 1)
    assert labels.namespaces == ()
    assert labels.problem is not None and "5 s" in labels.problem
    assert not labels.refresh(state(TEAM, 10 * NS_PER_S), 16 * NS_PER_S)  # said once
    assert labels.refresh(state(TEAM), 17 * NS_PER_S)
    assert (labels.namespaces, labels.problem) == (TEAM, None)


def test_what_was_never_known_is_missed_from_the_first_look_on():
    labels = NamespaceLabels(5 * NS_PER_S)
    assert not labels.refresh(state(None), 100 * NS_PER_S)
    assert not labels.refresh(state(None), 105 * NS_PER_S)
    assert labels.namespaces == ()
    assert labels.refresh(state(None), 106 * NS_PER_S)
    assert labels.problem is not None
