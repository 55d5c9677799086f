"""When a report is sent, what of it, and to whom the object is left."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from koordebpf.jobs.node_metric.sending import Hold, Limits, OtherWriter, Report, Send, Sending, limits, settled
from koordebpf.jobs.node_metric.values import NodeMetricSettings
from koordebpf.kube.colocation.node_metrics import ManagedFields, OwnMeta, OwnNodeMetric
from koordebpf.units import GIB, MIB, NS_PER_S
from tests.support.json_patch import applied

S = NS_PER_S
WITHIN = Limits(ratio=0.05, total_ratio=0.02)
SETTINGS = NodeMetricSettings()
START_NS, START_S = 5000 * S, 1_767_323_045  # 2026-01-02T03:04:05Z


def time_at(seconds: float) -> str:
    return datetime.fromtimestamp(START_S + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def usage(millicpu: int, memory: str = "100Mi") -> dict[str, Any]:
    return {"resources": {"cpu": f"{millicpu}m", "memory": memory}}


def pod(name: str, millicpu: int, memory: str = "100Mi", priority: str = "koord-prod") -> dict[str, Any]:
    return {"name": name, "namespace": "be", "podUsage": usage(millicpu, memory), "priority": priority, "qos": "LS"}


def status(*pods: dict[str, Any], node: int = 5001) -> dict[str, Any]:
    return {"nodeMetric": {"nodeUsage": usage(node)}, "podsMetric": list(pods)}


class Rig:
    """The pure sender against an object that takes its patches. Times are seconds from the start."""

    def __init__(self, **settings: Any) -> None:
        self.sending = Sending(NodeMetricSettings(**settings), OtherWriter("koordebpf"))
        self.version = 1
        self.managers: list[ManagedFields] = []
        self.server: Any = {"metadata": {"resourceVersion": "1"}, "status": {}}
        self.interval_s = 60
        self.skew_s = 0  # of the API server's clock, which the times of writers are of
        self.sent: list[tuple[float, list[Any]]] = []

    def watch(self, at_s: float) -> None:
        self.sending.found(self.object(), START_NS + int(at_s * S), START_S + at_s, self.interval_s * S)

    def object(self) -> OwnNodeMetric:
        meta = OwnMeta("n1", "uid", str(self.version), tuple(self.managers))
        return OwnNodeMetric(meta, {}, copy.deepcopy(self.server["status"]))

    def step(self, made: dict[str, Any], at_s: float, now_s: float | None = None) -> Send | Hold:
        rendered = {"updateTime": time_at(at_s), **made}
        report = Report(START_NS + int(at_s * S), rendered, self.interval_s * S, self.interval_s * S, WITHIN)
        return self.sending.step(report, START_NS + int((at_s if now_s is None else now_s) * S))

    def try_send(self, made: dict[str, Any], at_s: float, now_s: float | None = None) -> str:
        """Return `sent`, or why not."""
        step = self.step(made, at_s, now_s)
        if isinstance(step, Hold):
            return step.why
        self.sending.starts(step, START_NS + int((now_s or at_s) * S))
        self.take(step, at_s)
        self.sending.answered(step, self.object(), S // 10)
        self.watch(at_s)
        return "sent"

    def take(self, send: Send, at_s: float) -> None:
        """Let the server apply it."""
        self.server["metadata"]["resourceVersion"] = str(self.version)
        self.server = applied(self.server, send.body)
        self.version += 1
        self.managers = [each for each in self.managers if each.manager != "koordebpf"]
        self.managers.append(ManagedFields("koordebpf", "Update", "status", time_at(at_s + self.skew_s)))
        self.sent.append((at_s, json.loads(send.body)))

    def other_writes(self, at_s: float, manager: str = "koordlet", update_time: str | None = None) -> None:
        self.version += 1
        self.server["status"] = {"updateTime": update_time or time_at(at_s), **status(pod("theirs", 1))}
        self.managers = [each for each in self.managers if each.manager != manager]
        self.managers.append(ManagedFields(manager, "Update", "status", time_at(at_s + self.skew_s)))
        self.watch(at_s)


@pytest.fixture
def rig() -> Rig:
    made = Rig()
    made.watch(0)
    return made


class TestPace:
    def test_nothing_is_sent_before_the_object_is_known(self) -> None:
        rig = Rig()
        assert rig.try_send(status(), 0) == "unread"
        rig.sending.found(None, START_NS, START_S, 60 * S)
        assert rig.try_send(status(), 1) == "absent"
        rig.watch(2)
        assert rig.try_send(status(), 2) == "sent"

    def test_the_first_report_is_whole(self, rig: Rig) -> None:
        made = status(pod("a", 100))
        assert rig.try_send(made, 0) == "sent"
        assert rig.server["status"] == {"updateTime": time_at(0), **made}

    def test_without_news_its_time_alone_is_sent_before_it_is_too_old(self, rig: Rig) -> None:
        made = status(pod("a", 100))
        rig.try_send(made, 0)
        assert [rig.try_send(made, at_s) for at_s in (60, 120, 180.2, 240.4)] == ["quiet", "sent", "quiet", "sent"]
        version, *changes = rig.sent[-1][1]
        assert version["path"] == "/metadata/resourceVersion"
        assert [change["path"] for change in changes] == ["/status/updateTime"]

    @pytest.mark.parametrize("interval_s", [30, 45, 60, 75, 90, 110, 120])
    def test_no_interval_makes_it_older_than_150_s(self, rig: Rig, interval_s: int) -> None:
        rig.interval_s = interval_s
        made = status(pod("a", 100))
        for count in range(200):
            rig.try_send(made, count * (interval_s + 0.1))
        ages = [after - before for (before, _), (after, _) in zip(rig.sent, rig.sent[1:], strict=False)]
        assert max(ages) < 150
        assert min(ages) > 60 or interval_s > 60

    @pytest.mark.parametrize("suspended_s", [300, 86_400])
    def test_after_the_machine_was_suspended_its_report_is_old(self, rig: Rig, suspended_s: int) -> None:
        made = status(pod("a", 100))
        rig.try_send(made, 0)
        later = {"updateTime": time_at(60 + suspended_s), **made}
        step = rig.sending.step(Report(START_NS + 60 * S, later, 60 * S, 60 * S, WITHIN), START_NS + 60 * S)
        assert isinstance(step, Send)

    @pytest.mark.parametrize("written", ["-", "", "yesterday", "2026-01-02"])
    def test_a_time_that_cannot_be_read_is_no_reason(self, rig: Rig, written: str) -> None:
        made = status(pod("a", 100))
        rig.try_send(made, 0)
        rig.server["status"]["updateTime"] = written
        rig.version += 1
        rig.watch(1)
        assert rig.try_send(made, 60) == "quiet"
        assert rig.try_send(made, 120) == "sent"

    def test_what_moved_is_sent_at_once_and_nothing_else(self, rig: Rig) -> None:
        rig.try_send(status(pod("a", 100), pod("b", 1000), pod("c", 100, priority="koord-batch")), 0)
        assert rig.try_send(status(pod("a", 100), pod("b", 1000), pod("c", 110, priority="koord-batch")), 60) == "sent"
        assert [(each["path"], each["value"]) for each in rig.sent[-1][1][1:]] == [
            ("/status/updateTime", time_at(60)),
            ("/status/podsMetric/2/podUsage/resources/cpu", "110m"),
        ]

    def test_pods_that_come_and_go_are_news(self, rig: Rig) -> None:
        rig.try_send(status(pod("a", 100), pod("b", 100), pod("d", 100)), 0)
        after = status(pod("a", 100), pod("c", 100), pod("d", 100))
        assert rig.try_send(after, 60) == "sent"
        assert rig.server["status"]["podsMetric"] == after["podsMetric"]

    def test_a_report_is_sent_once(self, rig: Rig) -> None:
        assert rig.try_send(status(pod("a", 100)), 0) == "sent"
        assert rig.try_send(status(pod("a", 900)), 0, now_s=30) == "quiet"

    def test_writes_are_at_most_two_in_20_s(self, rig: Rig) -> None:
        assert [rig.try_send(status(pod("a", 100 * n)), n, now_s=n) for n in range(1, 4)] == ["sent", "sent", "pace"]
        step = rig.step(status(pod("a", 900)), 4)
        assert isinstance(step, Hold)
        assert step.again_ns == START_NS + 21 * S
        assert rig.try_send(status(pod("a", 900)), 21) == "sent"

    def test_a_slow_server_is_given_more_time_and_its_reports_start_sooner(self, rig: Rig) -> None:
        made = status(pod("a", 100))
        rig.try_send(made, 0)
        step = rig.step(made, 120)
        assert isinstance(step, Send)
        assert step.timeout_s == 15
        assert rig.sending.failed(step, 15 * S)
        slow = rig.step(made, 120, 135)
        assert isinstance(slow, Send)
        assert slow.timeout_s == 30
        rig.take(slow, 120)
        rig.sending.answered(slow, rig.object(), 25 * S)
        rig.watch(160)
        # Of 60 s that are granted a part is expected: the one before 120 s is sent.
        assert rig.try_send(made, 180) == "sent"

    def test_a_refusal_within_moments_is_no_slow_server(self, rig: Rig) -> None:
        step = rig.step(status(), 0)
        assert isinstance(step, Send)
        assert not rig.sending.failed(step, S // 10)
        again = rig.step(status(), 0, 1)
        assert isinstance(again, Send)
        assert again.timeout_s == step.timeout_s


class TestVersions:
    def test_after_a_conflict_it_waits_for_a_newer_version(self, rig: Rig) -> None:
        step = rig.step(status(pod("a", 1)), 0)
        assert isinstance(step, Send)
        rig.sending.conflicted(step)
        assert rig.try_send(status(pod("a", 1)), 0, now_s=1) == "unread"
        rig.version += 1
        rig.watch(2)
        assert rig.try_send(status(pod("a", 1)), 0, now_s=2) == "sent"

    def test_one_that_was_carried_out_without_an_answer_counts(self, rig: Rig) -> None:
        step = rig.step(status(pod("a", 1)), 0)
        assert isinstance(step, Send)
        rig.sending.starts(step, START_NS)
        rig.take(step, 0)
        rig.sending.failed(step, 8 * S)
        rig.watch(9)
        assert rig.sending.sent_ns == START_NS
        assert rig.try_send(status(pod("a", 1)), 0, now_s=9) == "quiet"

    def test_an_event_that_is_older_than_the_answer_changes_nothing(self, rig: Rig) -> None:
        before = rig.object()
        step = rig.step(status(pod("a", 100)), 0)
        assert isinstance(step, Send)
        rig.sending.starts(step, START_NS)
        rig.take(step, 0)
        rig.sending.answered(step, rig.object(), S)
        rig.sending.found(before, START_NS + S, START_S + 1, 60 * S)
        assert rig.try_send(status(pod("a", 100)), 60) == "quiet"
        rig.try_send(status(pod("a", 200)), 61)
        assert rig.server["status"]["podsMetric"] == [pod("a", 200)]

    def test_where_etcd_was_restored_the_older_version_is_the_true_one(self, rig: Rig) -> None:
        for at_s in range(0, 600, 60):
            rig.try_send(status(pod("a", 100 + at_s)), at_s)
        rig.version, rig.server["status"] = 3, {"updateTime": time_at(60), **status(pod("a", 160))}
        rig.watch(600)
        assert rig.try_send(status(pod("a", 640)), 601) == "sent"
        assert rig.server["status"]["podsMetric"] == [pod("a", 640)]

    def test_an_object_that_was_made_again_gets_a_whole_report(self, rig: Rig) -> None:
        rig.try_send(status(pod("a", 100)), 0)
        rig.sending.found(None, START_NS, START_S, 60 * S)
        assert rig.try_send(status(pod("a", 100)), 30) == "absent"
        rig.server = {"metadata": {"resourceVersion": "9"}, "status": {}}
        rig.version = 9
        rig.watch(31)
        assert rig.try_send(status(pod("a", 100)), 31) == "sent"
        assert rig.server["status"]["podsMetric"] == [pod("a", 100)]

    def test_fields_that_the_definition_lacks_are_sent_once(self, rig: Rig) -> None:
        made = status(pod("a", 100)) | {"prodPeakMetric": {"resource": {}}}
        made["nodeMetric"]["numaUsages"] = [{"numaNodeID": 0, "nodeUsage": usage(1)}]
        step = rig.step(made, 0)
        assert isinstance(step, Send)
        rig.take(step, 0)
        del rig.server["status"]["prodPeakMetric"]
        del rig.server["status"]["nodeMetric"]["numaUsages"]
        del rig.server["status"]["podsMetric"][0]["priority"]
        rig.sending.answered(step, rig.object(), S)
        assert rig.try_send(made, 60) == "quiet"
        assert rig.try_send(made, 120) == "sent"
        assert [change["path"] for change in rig.sent[-1][1][1:]] == ["/status/updateTime"]


class TestOtherWriter:
    def test_an_object_that_koordlet_writes_is_left_to_it(self, rig: Rig) -> None:
        rig.other_writes(0)
        for at_s in range(60, 600, 60):
            assert rig.try_send(status(pod("a", at_s)), at_s - 1) == "other"
            rig.other_writes(at_s)
        assert rig.sending.other.name == "koordlet"
        assert rig.sent == []

    def test_it_takes_over_after_two_intervals_of_silence_and_yields_when_koordlet_returns(self, rig: Rig) -> None:
        rig.other_writes(0)
        made = status(pod("a", 1))
        step = rig.step(made, 60)
        assert isinstance(step, Hold)
        assert step.again_ns == START_NS + 120 * S
        assert [rig.try_send(made, at_s) for at_s in (60, 119, 120)] == ["other", "other", "sent"]
        assert rig.server["status"] == {"updateTime": time_at(120), **made}
        rig.other_writes(200)
        assert rig.try_send(made, 201) == "other"
        assert rig.try_send(made, 320) == "sent"

    def test_a_report_of_koordlets_in_the_second_of_an_own_one_is_seen(self, rig: Rig) -> None:
        assert rig.try_send(status(pod("a", 1)), 60) == "sent"
        rig.other_writes(60, update_time=time_at(61))
        assert rig.try_send(status(pod("a", 900)), 62) == "other"

    def test_what_koordlet_wrote_long_ago_holds_nothing_up(self) -> None:
        rig = Rig()
        rig.server["status"] = {"updateTime": time_at(-500), **status()}
        rig.managers = [ManagedFields("koordlet", "Update", "status", time_at(-500))]
        rig.watch(0)
        assert rig.try_send(status(), 0) == "sent"

    @pytest.mark.parametrize("skew_s", [-3600, 3600])
    def test_clocks_that_differ_cost_one_report_at_most(self, skew_s: int) -> None:
        rig = Rig()
        rig.skew_s = skew_s
        held = []
        for at_s in range(0, 600, 60):
            rig.other_writes(at_s)
            held.append(rig.try_send(status(), at_s + 1))
        assert held[1:] == ["other"] * 9
        assert len(rig.sent) <= 1

    def test_a_report_of_the_agent_before_this_one_is_no_other_writer(self) -> None:
        rig = Rig()
        rig.server["status"] = {"updateTime": time_at(-5), **status()}
        rig.managers = [
            ManagedFields("koordlet", "Update", "status", time_at(-60)),
            ManagedFields("koordebpf", "Update", "status", time_at(-5)),
        ]
        rig.watch(0)
        assert rig.try_send(status(), 0) == "sent"

    def test_a_report_of_the_agent_before_this_one_that_arrives_late_is_no_other_writer(self, rig: Rig) -> None:
        rig.version += 1
        rig.server["status"] = {"updateTime": time_at(-1), **status()}
        rig.managers = [ManagedFields("koordebpf", "Update", "status", time_at(3))]
        rig.watch(3)
        assert rig.try_send(status(), 4) == "sent"

    def test_a_change_by_hand_without_a_report_is_overwritten(self, rig: Rig) -> None:
        rig.try_send(status(pod("a", 100)), 0)
        rig.other_writes(30, "kubectl-edit", update_time=time_at(0))
        assert rig.try_send(status(pod("a", 100)), 60) == "sent"
        assert rig.server["status"]["podsMetric"] == [pod("a", 100)]

    def test_a_spec_that_the_manager_writes_is_no_report(self, rig: Rig) -> None:
        rig.try_send(status(pod("a", 100)), 0)
        rig.version += 1
        rig.managers.append(ManagedFields("koord-manager", "Update", "", time_at(30)))
        rig.watch(30)
        assert rig.try_send(status(pod("a", 100)), 120) == "sent"


class TestSettled:
    def test_a_value_within_its_limit_stays_as_it_was_sent(self) -> None:
        base, new = status(pod("a", 1000, "100Mi")), status(pod("a", 1049, "96Mi"))
        wide = Limits(ratio=0.05, total_ratio=0.5)
        assert settled(base, new, wide)["podsMetric"] == base["podsMetric"]
        assert settled(base, status(pod("a", 1051)), wide)["podsMetric"] == [pod("a", 1051)]

    def test_one_resource_that_moved_is_replaced_alone(self) -> None:
        made = settled(status(pod("a", 1000, "100Mi")), status(pod("a", 1004, "200Mi")), WITHIN)
        assert made["podsMetric"] == [pod("a", 1000, "200Mi")]

    def test_small_errors_of_many_pods_do_not_add_up(self) -> None:
        base = status(*(pod(f"p{n:02}", 1000) for n in range(100)))
        new = status(*(pod(f"p{n:02}", 1000 + n % 50) for n in range(100)))
        made = settled(base, new, WITHIN)["podsMetric"]
        total = sum(int(each["podUsage"]["resources"]["cpu"][:-1]) for each in made)
        exact = sum(int(each["podUsage"]["resources"]["cpu"][:-1]) for each in new["podsMetric"])
        assert abs(total - exact) <= 0.02 * exact
        assert 0 < sum(mine != before for mine, before in zip(made, base["podsMetric"], strict=True)) < 30

    def test_sums_are_right_for_each_priority_class(self) -> None:
        base = status(pod("a", 1000), pod("b", 100_000, priority="koord-batch"))
        new = status(pod("a", 1040), pod("b", 100_000, priority="koord-batch"))
        assert settled(base, new, WITHIN)["podsMetric"][0] == pod("a", 1040)

    def test_a_small_part_of_the_node_is_ignored(self) -> None:
        within = limits(NodeMetricSettings(total_percent=50), 16_000, 64 * GIB)
        base, new = status(pod("a", 10, "10Mi")), status(pod("a", 25, "70Mi"))
        assert (within.millicpu, within.memory_bytes) == (16, pytest.approx(64 * GIB / 1000))
        assert settled(base, new, within)["podsMetric"] == [pod("a", 25, "70Mi")]  # the sum would be wrong
        more = [pod("z", 10_000, "4Gi")]
        assert settled(status(*base["podsMetric"], *more), status(*new["podsMetric"], *more), within) == status(
            *base["podsMetric"], *more
        )

    @pytest.mark.parametrize("written", [{"cpu": "much"}, {"cpu": 5}, {"cpu": None}, {}, None, [], "x", {"cpu": "-1"}])
    def test_what_another_wrote_there_is_replaced(self, written: Any) -> None:
        base = status(pod("a", 1))
        base["podsMetric"][0]["podUsage"] = {"resources": written}
        assert settled(base, status(pod("a", 100)), WITHIN) == status(pod("a", 100))

    @pytest.mark.parametrize(
        "base", [{}, {"podsMetric": 5}, {"podsMetric": [5, None, {"name": []}]}, {"nodeMetric": 1}]
    )
    def test_any_base_gives_the_new_status(self, base: Any) -> None:
        assert settled(base, status(pod("a", 100, f"{MIB}")), WITHIN) == status(pod("a", 100, f"{MIB}"))
