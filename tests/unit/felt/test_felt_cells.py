"""Pure parts of `make felt`: percentiles, sums of repeats, which cells there are, NodeSLO and gates of a way."""

from __future__ import annotations

import json

import pytest

from koordebpf.slo.spec import parse_spec
from tests.felt.cells import Found, markdown, median, percentiles, served, short, sums
from tests.felt.load.hogs import HOGS, NONE, command
from tests.felt.matrix import Plan
from tests.felt.node import Resources
from tests.felt.ways import ALL, DEFAULT, KUBELET, NOTHING, WAYS, gates, node_slo


def found(hog: str = "cpu", way: str = "all", repeat: int = 0, p999: float = 2.0, **more: float) -> Found:
    values = {"p50": 0.1, "p99": 1.0, "worst": p999 * 2, "served": 100.0, "lost": 0, "ls_kills": 0, "be_kills": 1}
    values |= {"evictions": 0, "be_cpu": 0.5, **more}
    return Found(app="redis", hog=hog, way=way, repeat=repeat, n=100, p999=p999, **values)


class TestPercentiles:
    def test_of_a_thousand_answers(self):
        assert percentiles([float(number) for number in range(1, 1001)]) == (500, 990, 999, 1000)

    def test_without_an_answer_they_are_infinite(self):
        assert percentiles([]) == (float("inf"),) * 4

    @pytest.mark.parametrize(("values", "expected"), [([3, 1, 2], 2), ([4, 1, 2, 3], 2.5), ([7], 7)])
    def test_median(self, values, expected):
        assert median(values) == expected


class TestServed:
    def test_what_is_answered_after_the_end_does_not_count(self):
        # Due at 0, 0.25, 0.5 and 0.75 s; the third takes until 1.1 s.
        assert served([10, 20, 600, 10], 0, rate=4, seconds=1) == 3

    def test_what_was_lost_comes_last_and_does_not_count(self):
        assert served([10, 20, 30, 40], 2, rate=4, seconds=1) == 2


class TestSums:
    def test_repeats_of_a_cell_are_one_row_with_their_median_and_spread(self):
        (row,) = sums([found(repeat=number, p999=value) for number, value in enumerate((5.0, 1.0, 3.0))])
        assert (row.repeats, row.p999, row.p999_least, row.p999_most, row.worst) == (3, 3, 1, 5, 10)
        assert (row.be_kills, row.ratio) == (3, None)

    def test_the_ratio_is_to_the_application_undisturbed(self):
        rows = sums([found(NONE, "nothing", p999=2), found("cpu", "nothing", p999=8), found("cpu", "all", p999=3)])
        assert [row.ratio for row in rows] == [1, 4, 1.5]

    def test_that_of_the_least_leaves_out_what_was_added(self):
        base = [found(NONE, "nothing", p999=value) for value in (2, 40, 60)]
        (_, row) = sums([*base, *(found(p999=value) for value in (3, 100, 400))])
        assert (row.ratio, row.ratio_least) == (2.5, 1.5)

    def test_the_table_has_a_line_for_each(self):
        lines = markdown(sums([found(NONE, "nothing"), found()])).splitlines()
        assert len(lines) == 4
        assert lines[3] == (
            "| redis | cpu | all | 0.10 | 1.00 | 2.00 (2.00 to 2.00) | 4.0 | 1.00, 1.00 | 100 | 0 | 0, 1 | 0 | 0.50 |"
        )

    def test_the_short_one_has_a_column_for_each_way(self):
        found_ = [found(NONE, "nothing"), found("cpu", "nothing", p999=1234.5), found("cpu", "all", p999=7.25)]
        assert short(sums([*found_, found("io", "all")])).splitlines() == [
            "| p99.9 in ms | undisturbed | nothing | all | OOM kills nothing, all |",
            "|---|---|---|---|---|",
            "| redis beside cpu | 2.0 | 1,234 | 7.2 | 1, 1 |",
            "| redis beside io | 2.0 |  | 2.0 | -, 1 |",
        ]


class TestPlan:
    def test_kubelet_and_defaults_are_run_only_where_they_do_something(self):
        plan = Plan("redis", ["cpu", "anon"], [NOTHING, KUBELET, DEFAULT, ALL])
        every = [NONE, "cpu", "anon"]
        assert dict(plan.cells()) == {NOTHING: every, KUBELET: ["anon"], DEFAULT: [NONE, "anon"], ALL: every}
        assert plan.count() == 9


class TestWays:
    @pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
    def test_its_node_slo_is_one_that_the_agent_takes(self, way):
        spec, problems = parse_spec(json.dumps({"spec": node_slo(way, "/dev/loop0")}).encode())
        assert problems == ()
        assert spec.cpuBurstStrategy.policy == ("auto" if "burst" in (way.strategies or ()) else "none")

    def test_gates(self):
        assert gates(DEFAULT).split(",")[:2] == ["BECPUSuppress=true", "GroupIdentity=false"]
        assert "false" not in gates(ALL)
        assert gates(WAYS["all-batch"]) == gates(ALL).replace("BatchResource=true", "BatchResource=false")


class TestResources:
    def test_native_ones_have_only_the_limits_that_are_given(self):
        assert Resources(500, 100, None, 200).native() == {
            "requests": {"cpu": "500m", "memory": "100"},
            "limits": {"memory": "200"},
        }

    def test_batch_ones_have_equal_limits(self):
        batch = Resources(500, 100).batch()
        assert (
            batch["requests"]
            == batch["limits"]
            == {
                "kubernetes.io/batch-cpu": "500",
                "kubernetes.io/batch-memory": "100",
            }
        )


@pytest.mark.parametrize("hog", [each for each in HOGS if each != "jvm"])
def test_a_hog_of_stress_ng_keeps_its_files_where_it_is_to(hog, tmp_path):
    program, _, option, folder, *more = command(hog, tmp_path)
    assert (program, option, folder) == ("stress-ng", "--temp-path", str(tmp_path))
    assert more


def test_an_unknown_hog_is_refused(tmp_path):
    with pytest.raises(KeyError):
        command("unknown", tmp_path)
