"""Which requests of eviction plugins are reported as not carried out, and how often."""

from __future__ import annotations

from koordebpf.policy.strategy import RequestNews
from koordebpf.state.build import view_of_frame
from koordebpf.strategies.katalyst.requests import Refused, ReportedRequests, Requests, Wanted, request_news
from koordebpf.units import NS_PER_S
from tests.support.values.builders import frame, pod

PODS = view_of_frame(frame([pod("web", uid="u-web", namespace="shop")])).pods


def refused(*uids: str, plugin: str = "p") -> Requests:
    return Requests(refused=tuple(Refused(plugin, uid, "no_candidate", "it is none") for uid in uids))


def news(
    before: ReportedRequests, requests: Requests, *plugins: str, at_s: float = 0
) -> tuple[list[str], ReportedRequests]:
    found, after = request_news(before, requests, plugins or ("p",), PODS, int(at_s * NS_PER_S))
    return [each.uid for each in found], after


def test_a_request_is_reported_once_for_as_long_as_it_is_made() -> None:
    first, after = news(ReportedRequests(), refused("a"))
    second, after = news(after, refused("a", "b"), at_s=5)
    third, after = news(after, refused("b"), at_s=10)
    again, _ = news(after, refused("a", "b"), at_s=15)
    assert (first, second, third, again) == (["a"], ["b"], [], ["a"])


def test_a_plugin_that_did_not_answer_has_not_withdrawn_its_request() -> None:
    _, after = news(ReportedRequests(), refused("a"))
    _, after = news(after, Requests(), "q", at_s=5)
    assert news(after, refused("a"), at_s=10)[0] == []


def test_a_refusal_names_the_pod_where_it_is_known() -> None:
    (found,), _ = request_news(ReportedRequests(), refused("u-web"), ("p",), PODS, 0)
    assert found == RequestNews("p", "u-web", "shop", "web", "refused", "no_candidate", "it is none")


def test_victims_of_a_dry_run_are_reported_with_their_reason() -> None:
    requests = Requests(dry_run=(Wanted("u-web", "p", "force", "because"),))
    (found,), after = request_news(ReportedRequests(), requests, ("p",), PODS, 0)
    assert (found.outcome, found.name, found.reason) == ("dry_run", "web", "because")
    assert request_news(after, requests, ("p",), PODS, 5)[0] == ()


def test_a_plugin_that_names_other_pods_each_round_reports_twenty_a_minute() -> None:
    state, reported = ReportedRequests(), 0
    for number in range(24):  # two minutes
        found, state = news(state, refused(*(f"{number}-{each}" for each in range(500))), at_s=5 * number)
        reported += len(found)
        assert len(state.known) <= 2000
    assert reported == 40


def test_what_is_above_the_bound_is_reported_later() -> None:
    uids = [f"u{number:02}" for number in range(30)]
    first, after = news(ReportedRequests(), refused(*uids))
    second, after = news(after, refused(*uids), at_s=5)
    later, _ = news(after, refused(*uids), at_s=61)
    assert (first, second, later) == (uids[:20], [], uids[20:])


def test_a_uid_of_any_length_is_cut() -> None:
    found, _ = news(ReportedRequests(), refused("x" * 10_000))
    assert found == ["x" * 64]
