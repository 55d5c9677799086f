"""What must hold for selectors of namespaces by label, whatever the labels are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from koordebpf.kube.cache.objects import Namespace, ObjectMeta
from koordebpf.policy.decide import decide
from koordebpf.policy.detect import be_memory_evict
from koordebpf.policy.evict.by_feature import candidates_of
from koordebpf.policy.evict.round import Round
from koordebpf.policy.evict.settings import EvictSettings, capped_grace_s
from koordebpf.state.build import view_of_frame
from koordebpf.state.pods.namespaces import (
    ExemptionSettings,
    LabelExpression,
    Namespaces,
    NamespaceSelector,
    check_namespaces,
    is_honoured,
    judged,
)
from koordebpf.state.view import Frame, NodeView
from tests.scenarios.test_eviction_eligibility import APP, pdb
from tests.support.values.builders import frame, pod

WORDS = st.sampled_from(["tier", "team"])
VALUES = st.sampled_from(["gold", "lead", ""])
LABELS = st.dictionaries(WORDS, VALUES)
MINE, OTHERS = "mine", "others"


@st.composite
def expressions(draw: st.DrawFn) -> LabelExpression:
    operator = draw(st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]))
    has_values = operator in ("In", "NotIn")
    values = draw(st.lists(VALUES, min_size=1, max_size=2)) if has_values else []
    return LabelExpression(draw(WORDS), operator, tuple(values))  # type: ignore[arg-type]  # one of the four


SELECTORS = st.builds(NamespaceSelector, LABELS, st.lists(expressions(), max_size=2).map(tuple))
BY_LABEL = st.frozensets(SELECTORS, max_size=2)
BY_ANY = st.frozensets(SELECTORS | st.sampled_from([MINE, OTHERS, "m*", "infra"]), max_size=3)


def exemptions_of(kinds: st.SearchStrategy[Namespaces]) -> st.SearchStrategy[ExemptionSettings]:
    return st.builds(ExemptionSettings, kinds, kinds, kinds, kinds)


@st.composite
def nodes(draw: st.DrawFn) -> Frame:
    pods = [
        pod(
            f"p{at}",
            uid=f"uid-{at}",
            anon=draw(st.integers(1, 400)),
            namespace=draw(st.sampled_from([MINE, OTHERS])),
            qos=draw(st.sampled_from(["BE", "LS", None])),
            kube_qos=draw(st.sampled_from(["BestEffort", "Burstable"])),
            priority=draw(st.sampled_from([3000, 5000, 9500])),
            policy=draw(st.sampled_from([None, "[]"])),
            labels=draw(st.sampled_from([None, APP])),
        )
        for at in range(draw(st.integers(1, 8)))
    ]
    patient = [
        replace(each, pod=replace(each.pod, spec=replace(each.pod.spec, terminationGracePeriodSeconds=seconds)))
        for each in pods
        if (seconds := draw(st.sampled_from([1, 30, 86400])))
    ]
    budgets = tuple(pdb(namespace=each) for each in draw(st.sets(st.sampled_from([MINE, OTHERS]))))
    return replace(frame(patient, used=draw(st.integers(700, 1000))), podDisruptionBudgets=budgets)


def labelled(recorded: Frame, **labels: dict[str, str] | None) -> Frame:
    """Return the frame with these labels of namespaces; None: they are not known."""
    known = [Namespace(ObjectMeta(name=name, labels=each)) for name, each in labels.items() if each is not None]
    return replace(recorded, namespaces=tuple(known))


def facts(view: NodeView, settings: EvictSettings) -> list[object]:
    """Return all that exemptions decide about the pods of namespace `mine`, the order among others left out."""
    view = judged(view, settings.exemptions)
    current = Round(view, settings, [])
    candidates, excluded = candidates_of(current, be_memory_evict.FEATURE)
    mine = [each for each in view.pods if each.namespace == MINE]
    return [
        mine,
        [each for each in candidates if each.namespace == MINE],
        [each for each in excluded if each.namespace == MINE],
        [capped_grace_s(each, view, settings) for each in mine],
        [current.allowance.is_blocked(current.allowance._disruptions.predict(each), MINE) for each in mine],
        [
            (each.uid, each.code, each.why)
            for feature in decide(view, settings).features
            for each in feature.not_honoured
            if each.namespace == MINE and each.code != "budget"
        ],
    ]


@given(nodes(), exemptions_of(BY_ANY), LABELS | st.none(), LABELS | st.none(), LABELS | st.none())
def test_labels_of_one_namespace_change_nothing_in_another(
    recorded: Frame,
    exemptions: ExemptionSettings,
    mine: dict[str, str] | None,
    before: dict[str, str] | None,
    after: dict[str, str] | None,
) -> None:
    settings = EvictSettings(exemptions=exemptions)
    one, two = (view_of_frame(labelled(recorded, mine=mine, others=each)) for each in (before, after))
    assert facts(one, settings) == facts(two, settings)


@given(nodes(), exemptions_of(BY_ANY), LABELS, LABELS)
def test_labels_of_a_namespace_without_pods_here_change_nothing(
    recorded: Frame, exemptions: ExemptionSettings, mine: dict[str, str], elsewhere: dict[str, str]
) -> None:
    settings = EvictSettings(exemptions=exemptions)
    without, beside = labelled(recorded, mine=mine), labelled(recorded, mine=mine, elsewhere=elsewhere)
    assert decide(view_of_frame(without), settings) == decide(view_of_frame(beside), settings)


@given(nodes(), exemptions_of(st.frozensets(SELECTORS, min_size=1, max_size=2)))
def test_while_no_labels_are_known_the_plan_is_as_if_everything_counted(
    recorded: Frame, exemptions: ExemptionSettings
) -> None:
    view = view_of_frame(recorded)
    plan = decide(view, EvictSettings(exemptions=exemptions))
    assert plan.undecided_namespaces == tuple(sorted({each.namespace for each in view.pods}))
    assert replace(plan, undecided_namespaces=()) == decide(view, EvictSettings())


# Source: k8s.io/apimachinery pkg/labels, Requirement.Matches, written down once more.
def _fits(each: LabelExpression, labels: dict[str, str]) -> bool:
    if each.operator == "Exists":
        return each.key in labels
    if each.operator == "DoesNotExist":
        return each.key not in labels
    is_in = each.key in labels and labels[each.key] in each.values
    return is_in if each.operator == "In" else not is_in


@given(BY_LABEL, LABELS)
def test_a_selector_selects_what_kubernetes_would(
    selectors: frozenset[NamespaceSelector], labels: dict[str, str]
) -> None:
    namespaces: Namespaces = selectors
    check_namespaces(namespaces, "")
    view = view_of_frame(labelled(frame([pod("p", namespace=MINE)]), mine=labels))
    wanted = any(
        each.matchLabels.items() <= labels.items() and all(_fits(one, labels) for one in each.matchExpressions)
        for each in selectors
    )
    assert is_honoured(namespaces, MINE, view) == wanted
