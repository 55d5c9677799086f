"""Who stalled how long: sums out of the kernel's map, histograms, counters, the ledger's lines."""

from __future__ import annotations

from koordebpf.events.layout import decode_totals
from koordebpf.events.records import CgroupStall, StallSum
from koordebpf.report.pages.plan import LEDGER_HEADER, ledger_lines
from koordebpf.state.measured import LedgerRow, LedgerView, Party
from koordebpf.tools.trace.output import Counters, counters_lines, program_counters, vmstat_counters
from koordebpf.tools.trace.summary import PodStalls, StallBook, Summary, summary_lines

S = 1_000_000_000
NAMES = {1: "shop/web", 2: "shop/web", 3: "shop/hog", 4: None}


def sums(count: int, total_ns: int, max_ns: int, **slots: int) -> StallSum:
    return StallSum(count, total_ns, max_ns, 0, tuple(slots.get(f"s{slot}", 0) for slot in range(32)))


NONE = sums(0, 0, 0)


def stall(cgroup_id: int, node: StallSum = NONE, limit: StallSum = NONE) -> CgroupStall:
    return CgroupStall(cgroup_id, node, limit)


def book(*pushes: list[CgroupStall]) -> StallBook:
    made = StallBook()
    for push in pushes:
        made.push(push, NAMES.get)
    return made


def test_cgroups_of_a_pod_are_added_up_by_cause() -> None:
    (web,) = book(
        [stall(1, sums(2, 5000, 4000, s0=1, s2=1)), stall(2, sums(1, 3000, 3000, s1=1), sums(1, 7, 7, s0=1))]
    ).drain()
    assert (web.name, web.total_ns) == ("shop/web", 8007)
    node, limit = web.causes
    assert (node.cause, node.count, node.total_ns, node.max_ns, node.hist) == ("global_", 3, 8000, 4000, (1, 1, 1))
    assert (limit.cause, limit.count, limit.hist) == ("limit", 1, (1,))
    assert web.cause_ns("global_", "limit") == 8007


def test_what_was_sent_is_not_sent_again() -> None:
    made = book([stall(1, sums(2, 5000, 4000, s2=2))])
    assert made.drain()[0].total_ns == 5000
    assert made.drain() == ()
    made.push([stall(1, sums(3, 6000, 4000, s0=1, s2=2))], NAMES.get)
    (web,) = made.drain()
    # The longest of these is not known: it was no longer than its slot, 2 µs, and than all together.
    assert (web.total_ns, web.causes[0].count, web.causes[0].max_ns, web.causes[0].hist) == (1000, 1, 1000, (1,))


def test_a_dead_cgroup_keeps_what_it_stalled_and_its_id_may_live_again() -> None:
    made = book([stall(1, sums(2, 5000, 4000, s2=2))], [], [stall(1, sums(1, 100, 100, s0=1))])
    assert made.drain()[0].total_ns == 5100
    made = book([stall(1, sums(2, 5000, 4000, s2=2))], [stall(1, sums(1, 100, 100, s0=1))])
    assert made.drain()[0].total_ns == 5100


def test_throttling_is_a_part_and_not_in_the_total() -> None:
    throttled = CgroupStall(1, sums(1, 5000, 5000, s2=1), StallSum(), throttled=sums(1, 2000, 2000, s1=1))
    (web,) = book([throttled]).drain()
    assert web.total_ns == 5000
    assert [each.cause for each in web.causes] == ["global_", "throttled"]


def test_it_was_not_asked_for() -> None:
    assert book([stall(4, sums(1, 5, 5, s0=1))]).drain() == ()


def summary(pods: tuple[PodStalls, ...], ledger: LedgerView | None = None) -> Summary:
    return Summary("2026-01-02T03:04:05+00:00", 2.0, sum(pod.total_ns for pod in pods), pods, ledger)


def test_the_summary_has_totals_and_a_histogram() -> None:
    pods = book([stall(1, sums(3, 9_500_000, 9_000_000, s8=2, s13=1)), stall(3, limit=sums(1, 900, 900, s0=1))]).drain()
    lines = summary_lines(summary(pods))
    assert lines[0] == "9.5 ms stalled in 2.0 s, all tasks added up"
    assert lines[2] == "POD                                 NODE     LIMIT   COMPACT     OTHER     TOTAL"
    assert lines[3] == "shop/web                          9.5 ms         ·         ·         ·    9.5 ms"
    assert lines[4] == "shop/hog                               ·    900 ns         ·         ·    900 ns"
    assert lines[6] == "shop/web: reclaim, the node is short"
    assert lines[7] == "  3 stalls, 9.5 ms in all, the longest 9 ms"
    assert lines[8] == f"    256 µs – 512 µs           2 |{'*' * 38}|"
    assert lines[13] == f"   8.19 ms – 16.4 ms          1 |{'*' * 19:<38}|"
    assert lines[-1] == f"         0 – 2 µs             1 |{'*' * 38}|"
    assert max(map(len, lines)) <= 80


def test_no_stall_is_one_line_and_many_pods_are_cut() -> None:
    assert summary_lines(summary(())) == ["no stall in 2.0 s"]
    made = StallBook()
    made.push([stall(each, sums(1, 1000 + each, 1, s0=1)) for each in range(30)], lambda cgroup_id: f"p{cgroup_id}")
    lines = summary_lines(summary(made.drain()), most=5)
    assert lines[3].startswith("p29 ")
    assert lines[8].split() == ["25", "more", "25.3", "µs"]
    assert max(map(len, lines)) <= 80


WEB, HOG = Party("w", "pod", "shop/web", "main"), Party("h", "pod", "batch/hog" + "x" * 40)


def test_the_ledger_says_who_on_whose_account() -> None:
    rows = (
        LedgerRow(WEB, HOG, 3 * S, S, 13 * S),
        LedgerRow(WEB, Party("o", "own limit", ""), S, S, 2 * S),
        LedgerRow(WEB, Party("u", "unattributed", ""), S, S, 2 * S),
    )
    lines = ledger_lines(LedgerView(10 * S, 5 * S, S, rows), most=2)
    assert lines[0] == LEDGER_HEADER
    assert lines[1] == "shop/web/main              ← …xxxxxxxxxxxxxxxxxxxxxxxxx    300.0      12 s"
    assert lines[2].split("←")[1].split() == ["its", "own", "limit", "100.0", "1", "s"]
    assert lines[3].split() == ["1", "more", "100.0"]
    assert max(map(len, lines)) <= 80
    assert ledger_lines(LedgerView(10 * S, 0, 0))[1] == "no pod, in 10 s"
    assert any(
        "← shop" not in line for line in summary_lines(summary((PodStalls("a", 1, ()),), LedgerView(S, 1, 0, rows)))
    )


def test_counters_since_boot_and_since_attach() -> None:
    before = {"allocstall_normal": 3, "allocstall_movable": 4, "oom_kill": 1}
    after = {"allocstall_normal": 5, "allocstall_movable": 4, "oom_kill": 2, "pswpin": 7}
    found = {each.name: (each.since_boot, each.since_attach) for each in vmstat_counters(before, after)}
    assert found["allocstall_*"] == (9, 2)
    assert found["oom_kill"] == (2, 1)
    assert found["pswpin"] == (7, None)
    assert found["compact_stall"] == (None, None)


def test_counters_as_text() -> None:
    totals = decode_totals(bytes(1712))
    counters = Counters(
        "t",
        2.0,
        vmstat_counters({}, {"oom_kill": 10**14}),
        program_counters(totals),
        (3, 0),
        (5_000, 0),
        {"some": 10**9},
    )
    lines = counters_lines(counters)
    assert "oom_kill                 100000000000000            -  OOM kills" in lines
    assert "PSI some                         1000 s               time lost to memory" in lines
    assert any(line.startswith("kswapd, NUMA node 0") and line.endswith("3  wakes, 5 µs awake") for line in lines)
    assert max(map(len, lines)) <= 80
    assert counters_lines(Counters("t", 2.0, (), None))[-1] == "none could be loaded: koordebpf doctor says why"
