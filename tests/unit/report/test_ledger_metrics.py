"""The ledger's series: bounded, and gone with their pods."""

from __future__ import annotations

from koordebpf.report.prom.pods import LedgerMetrics, forecast_families
from koordebpf.state.build import view_of_frame
from koordebpf.state.measured import Party, PodMeasure, TimeTo
from koordebpf.state.stalls.ledger import OWN_LIMIT, UNATTRIBUTED, Charge
from tests.support.values.builders import PodAndMeasure, frame, pod

S = 1_000_000_000


def party(name: str) -> Party:
    return Party(name, "pod", f"ns/{name}", uid=name)


def series(metrics: LedgerMetrics) -> dict[tuple[str, str], float]:
    (family,) = metrics.families()
    return {(each.labels["victim"], each.labels["cause"]): each.value for each in family.samples}


def test_containers_of_a_pod_share_its_series() -> None:
    metrics = LedgerMetrics()
    app = Party("web/1", "pod", "ns/web", "app", "web")
    metrics.add([Charge(app, OWN_LIMIT, S), Charge(party("web"), OWN_LIMIT, S), Charge(app, UNATTRIBUTED, 5)])
    metrics.add([Charge(app, Party("x.service", "cgroup", "x.service"), S)])
    assert series(metrics) == {
        ("ns/web", "own limit"): 2.0,
        ("ns/web", "unattributed"): 5e-9,
        ("ns/web", "x.service"): 1.0,
    }


def test_beyond_the_bound_everything_goes_to_one_series_and_nothing_is_lost() -> None:
    metrics = LedgerMetrics(max_pairs=3)
    metrics.add([Charge(party(f"p{at}"), OWN_LIMIT, S) for at in range(10)])
    metrics.add([Charge(party("p0"), OWN_LIMIT, S)])
    found = series(metrics)
    assert found == {("ns/p0", "own limit"): 2.0, **{(f"ns/p{at}", "own limit"): 1.0 for at in (1, 2)}} | {
        ("_other", "_other"): 7.0
    }


def test_series_go_with_their_pods() -> None:
    metrics = LedgerMetrics(max_pairs=2)
    unknown = Party("u-1", "pod", "u-1", uid="u-1")
    metrics.add([Charge(party("a"), party("b"), S), Charge(unknown, OWN_LIMIT, S), Charge(party("c"), OWN_LIMIT, S)])
    assert ("_unknown", "own limit") in series(metrics)
    metrics.keep_pods(["ns/a", "ns/c"])
    assert set(series(metrics)) == {("_unknown", "own limit"), ("_other", "_other")}
    metrics.add([Charge(party("c"), OWN_LIMIT, S)])
    assert series(metrics)["ns/c", "own limit"] == 1.0


def test_the_soonest_pods_have_a_forecast() -> None:
    def forecast(name: str, point_s: int, high_s: int | None) -> PodAndMeasure:
        made = pod(name)
        time_to = TimeTo(0, point_s * S, None if high_s is None else high_s * S)
        return PodAndMeasure(made.pod, PodMeasure(made.pod.uid, forecast=time_to))

    pods = view_of_frame(
        frame([*(forecast(f"p{at}", 20 - at, None) for at in range(15)), forecast("x", 1, 2), pod("n")])
    )
    _, family = forecast_families(None, pods.pods, most_pods=10)
    shown = {each.labels["pod"] for each in family.samples}
    assert shown == {"x", *(f"p{at}" for at in range(6, 15))}
    assert [each.value for each in family.samples[:3]] == [0.0, 1.0, 2.0]
    assert [each.labels["bound"] for each in family.samples[3:5]] == ["low", "point"]
