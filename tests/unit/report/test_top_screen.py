"""`koordebpf top` at every width: which columns there are, the tree, the filter, one row alone, and keys."""

from __future__ import annotations

import io
import re

import pytest
from msgspec.structs import replace
from rich.console import Console

from koordebpf.report.top import TopPage, TopRow
from koordebpf.state.measured import LedgerRow, LedgerView, NodeMeasure, Party, PsiLine, StallShares, TimeTo
from koordebpf.tools.top.choice import KEY_LINE, REPLAY_KEY_LINE, Choice, pressed
from koordebpf.tools.top.page import SAMPLES, Around, Sample, Trails, help_lines, page_lines, shown_rows, sparkline
from koordebpf.tools.top.screen import Screen
from koordebpf.tools.top.table import LEAST_WIDTH, MOST_WIDTH, as_tree, layout
from koordebpf.units import MIB, NS_PER_S

WEB = Party("uid-web", "pod", "shop/web", None, "uid-web")
HOG = Party("uid-hog", "pod", "batch/hog", None, "uid-hog")
LEDGER = LedgerView(60 * NS_PER_S, NS_PER_S, 0, (LedgerRow(WEB, HOG, NS_PER_S, 0, NS_PER_S),))


def row(name: str, mib: int | None = 10, some: float = 0.0, **more: object) -> TopRow:
    used = None if mib is None else mib * MIB
    shares = StallShares(PsiLine(some, 0.0, 0.0, 1), PsiLine(0.0, 0.0, 0.0, 1), False, None)
    made = TopRow(name, "BE", 5000, 7, used, used, 3 * MIB, 64 * MIB, 1.0 * MIB, 0, 0, shares, None)
    return replace(made, **more)


def page(*rows: TopRow, used_mib: int = 500) -> TopPage:
    node = NodeMeasure("machine", 1000 * MIB, used_mib * MIB)
    time = "2026-01-02T03:04:05+00:00"
    sizes = (1000 * MIB, 800 * MIB)
    return TopPage("koordebpf.top/v1", time, "pod", "usage", *sizes, node, None, None, rows, LEDGER)


SHOP = page(row("shop/web", 30), row("batch/hog", 20, some=40.0), row("shop/api", 10))


def text(shown: TopPage, choice: Choice = Choice(), **more: object) -> list[str]:  # noqa: B008
    return [line for line, _ in page_lines(shown, choice, **more)]  # type: ignore[arg-type]


class TestWidth:
    @pytest.mark.parametrize("width", range(LEAST_WIDTH, MOST_WIDTH + 1))
    def test_nothing_is_wider_and_the_name_gets_what_is_left(self, width: int) -> None:
        long = page(row("namespace-of-a-team/" + "very-long-name-" * 9 + "end", 10, full_in=TimeTo(9, 10, None)))
        lines = text(long, width=width)
        assert max(map(len, lines)) <= width
        heading, line = lines[-2:]
        assert len(heading) == width == len(line)
        assert line.split()[0].endswith("end")
        assert heading.index(" QOS") >= 24 or "QOS" not in heading
        assert "USED" in heading and "SOME%" in heading

    def test_columns_go_by_importance_and_come_where_there_is_room(self) -> None:
        def headings(width: int) -> list[str]:
            return [each.heading for each in layout(width, 99).columns]

        assert headings(60) == ["QOS", "USED", "SOME%", "OOM IN"]
        assert headings(73) == ["QOS", "USED", "GROWTH/s", "SOME%", "BY", "OOM IN"]
        assert headings(80) == ["QOS", "USED", "GROWTH/s", "SOME%", "FULL%", "BY", "OOM IN"]
        assert headings(200)[-3:] == ["CACHE", "LIMIT", "PRIORITY"]

    def test_two_names_that_differ_are_told_apart_where_there_is_room(self) -> None:
        names = [f"kubepods/besteffort/pod39b04248-90fb-{at}-bc8e-98905dcd5cc2" for at in ("4379", "4380")]
        lines = text(page(*map(row, names)), width=120)[-2:]
        assert [line.split()[0] for line in lines] == names

    def test_a_screen_as_wide_as_the_terminal(self) -> None:
        for width in (60, 120, 250):
            out = io.StringIO()
            console = Console(file=out, force_terminal=True, width=width, height=12, color_system=None, _environ={})
            with Screen(console) as screen:
                screen.show(SHOP, Choice())
            plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue().replace("\x1b[H", "\n")).splitlines()
            heading = next(line for line in plain if line.startswith("POD "))
            assert len(heading.rstrip()) == min(width, MOST_WIDTH)


class TestTree:
    ROWS = (row("a/web", 5), row("a/web[main]", 3), row("b/hog", 9), row("a/web[side]", 1), row("b/hog[c]"), row("x"))

    def test_containers_stand_below_their_pods(self) -> None:
        assert [placed.name for placed in as_tree(self.ROWS)] == [
            "a/web",
            "  [main]",
            "  [side]",
            "b/hog",
            "  [c]",
            "x",
        ]

    def test_cgroups_below_cgroups(self) -> None:
        rows = [row(name) for name in ("kubepods", "kubepods/burstable", "system", "kubepods/burstable/pod1/c")]
        assert [placed.name for placed in as_tree(rows)] == ["kubepods", "  burstable", "    pod1/c", "system"]

    def test_rows_of_one_name_are_all_there(self) -> None:
        rows = [row("a"), row("a"), row("a[x]"), row("a[x]")]
        assert [placed.name for placed in as_tree(rows)] == ["a", "  [x]", "  [x]", "a"]

    def test_it_takes_in_what_is_around(self) -> None:
        inner = (row("shop/web[main]", 29),)
        lines = text(SHOP, Choice(tree=True), around=Around(inner))
        assert [line.split()[0] for line in lines[-4:]] == ["shop/web", "[main]", "batch/hog", "shop/api"]


class TestFilter:
    def test_only_names_with_the_text(self) -> None:
        assert [placed.row.name for placed in shown_rows(SHOP, Choice(filter="SHOP"))] == ["shop/web", "shop/api"]
        assert text(SHOP, Choice(filter="nope"))[-1] == "no pod has 'nope' in its name"

    def test_it_is_typed(self) -> None:
        choice = Choice(selected=2)
        for key in ("/", "h", "q", "backspace", "o", "down", "\x1b", "enter"):
            choice = pressed(choice, key, ["x"])
        assert (choice.filter, choice.typing, choice.stop, choice.selected) == ("ho", False, False, -1)
        assert pressed(choice, "escape").filter == ""
        assert pressed(Choice(typing=True, filter="x"), "escape") == Choice()
        assert pressed(Choice(typing=True), "\x03").stop

    def test_it_has_an_end(self) -> None:
        choice = Choice(typing=True)
        for _ in range(500):
            choice = pressed(choice, "x")
        assert len(choice.filter) == 80


class TestRows:
    NAMES = tuple("abcdef")

    @pytest.mark.parametrize(
        ("keys", "place"),
        [("down", 0), ("down down up", 0), ("end", 5), ("end down", 5), ("home", 0), ("page down", 5), ("up", 0)],
    )
    def test_one_is_marked(self, keys: str, place: int) -> None:
        choice = Choice()
        for key in re.findall(r"page down|\S+", keys):
            choice = pressed(choice, key, self.NAMES)
        if keys == "page down":
            place = min(9, 5)
        assert choice.selected == place

    def test_the_marked_one_is_seen(self) -> None:
        rows = page(*(row(f"ns/p{number:02}") for number in range(40)))
        lines = page_lines(rows, Choice(selected=39), 12)
        assert len(lines) == 12
        assert [line.split()[0] for line, style in lines if style == "reverse"] == ["ns/p39"]

    def test_enter_opens_it_and_escape_closes_what_was_opened_last(self) -> None:
        opened = pressed(Choice(selected=1), "enter", self.NAMES)
        assert opened.detail == "b"
        assert pressed(Choice(), "enter", self.NAMES).detail == "a"
        assert pressed(Choice(), "enter", ()).detail is None
        helped = pressed(opened, "?")
        assert (helped.help, pressed(helped, "escape").help, pressed(helped, "escape").detail) == (True, False, "b")
        assert pressed(opened, "escape").detail is None


class TestDetail:
    def test_one_pod_with_what_it_was_before(self) -> None:
        trail = [Sample(number * MIB, None if number < 2 else 1.0, 0.0) for number in range(5)]
        around = Around((row("batch/hog[main]", 19), row("shop/web[x]")), {"batch/hog": trail})
        lines = text(SHOP, Choice(detail="batch/hog"), around=around)
        assert lines[4:] == [
            "",
            "batch/hog",
            "BE, priority 5000, full never, as it grows now",
            "used      20.0MiB of 64.0MiB, page cache 3.0MiB",
            "          ▁▃▅▇█",
            "growth    1.0MiB/s",
            "            ███",
            "stalled   some 40.0 %, full · % of the last 10 s",
            "          ▁▁▁▁▁",
            "",
            "STALLED                    ← ON ACCOUNT OF                  ms/s     SINCE",
            "shop/web                   ← batch/hog                      16.7       1 s",
            "",
            "CONTAINER                QOS       USED GROWTH/s  SOME%  FULL% BY         OOM IN",
            "batch/hog[main]          BE     19.0MiB   1.0MiB      ·      ·                 -",
        ]

    def test_one_that_is_gone(self) -> None:
        assert text(SHOP, Choice(detail="shop/gone"))[-2:] == ["shop/gone", "it is not there any more"]

    @pytest.mark.parametrize("width", [60, 80, 200])
    def test_it_fits(self, width: int) -> None:
        trail = [Sample(number, 1.0, 2.0) for number in range(SAMPLES)]
        lines = text(SHOP, Choice(detail="batch/hog"), around=Around(trails={"batch/hog": trail}), width=width)
        assert max(map(len, lines)) <= width


class TestTrails:
    def test_bars(self) -> None:
        assert sparkline([0, 1, None, 7, 14], 4) == "▁ ▅█"
        assert sparkline([], 10) == ""
        assert sparkline([-5.0, 0.0], 10) == "▁▁"
        assert sparkline([None], 3) == " "
        assert sparkline(range(1, 300), 50)[-1] == "█"
        assert len(sparkline(range(300), 50)) == 50

    def test_they_are_bounded_and_of_who_is_there(self) -> None:
        trails = Trails()
        for number in range(3 * SAMPLES):
            trails.push([row("a", number), *([row("b")] if number < 5 else [])])
        assert trails.by_name.keys() == {"a"}
        assert len(trails.by_name["a"]) == SAMPLES
        assert trails.by_name["a"][-1].used_bytes == (3 * SAMPLES - 1) * MIB


class TestColours:
    @pytest.mark.parametrize(
        ("shown", "style"),
        [
            (row("a"), ""),
            (row("a", some=0.5), "yellow"),
            (row("a", some=1.0), "red"),
            (row("a", full_in=TimeTo(1, 30 * NS_PER_S, None)), "yellow"),
        ],
    )
    def test_of_rows_by_pressure(self, shown: TopRow, style: str) -> None:
        assert page_lines(page(shown), Choice())[-1][1] == style

    @pytest.mark.parametrize(("used", "style"), [(500, ""), (770, "yellow"), (800, "red")])
    def test_of_the_node_by_its_threshold(self, used: int, style: str) -> None:
        assert page_lines(page(used_mib=used), Choice())[0][1] == style


class TestAround:
    def test_a_hint_where_no_pod_has_a_name(self) -> None:
        around = Around(hint="Name them by --pods FILE.")
        assert text(page(row("? pod1")), around=around)[-1] == "Name them by --pods FILE."
        assert text(page(), around=around)[-1] == "Name them by --pods FILE."
        assert "Name them by --pods FILE." not in text(SHOP, around=around)
        assert "Name them by --pods FILE." not in text(replace(page(), level="cgroup"), around=around)

    def test_a_note_stands_first(self) -> None:
        assert text(SHOP, around=Around(note="12:00, round 1 of 9"))[0] == "12:00, round 1 of 9"

    def test_help_fits_and_has_the_keys_of_time_in_a_replay(self) -> None:
        assert max(map(len, help_lines(replays=True))) <= LEAST_WIDTH
        assert [line for line in help_lines(replays=True) if "t T a round on, back" in line]
        assert not [line for line in help_lines(replays=False) if "t T a round on, back" in line]
        assert text(SHOP, Choice(help=True))[0] == "Sort   s stall  u usage  g growth  t time left  n name"
        assert "t time left" not in help_lines(replays=True)[0]  # there it is a key of time
        assert len(KEY_LINE) <= 80 and len(REPLAY_KEY_LINE) <= 90

    @pytest.mark.parametrize("replays", [False, True])
    def test_a_terminal_of_24_lines_shows_all_of_it(self, replays: bool) -> None:
        around = Around(note="2027-01-15T08:00:51.000Z, round 1 of 3600, a decision " * 2, replays=replays)
        lines = text(SHOP, Choice(help=True), height=23, width=LEAST_WIDTH, around=around)  # the last line has the keys
        assert len(lines) <= 23 and lines[-1] == "q ends"

    @pytest.mark.parametrize("height", [1, 5, 18])
    def test_a_lower_one_says_that_there_is_more(self, height: int) -> None:
        whole = help_lines(replays=False)
        lines = text(SHOP, Choice(help=True), height=height)
        assert len(lines) == height
        assert lines[-1] == f"… and {len(whole) - height + 1} lines more: a higher terminal has room"
        assert text(SHOP, Choice(help=True), height=len(whole)) == whole
