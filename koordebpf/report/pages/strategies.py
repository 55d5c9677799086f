"""The strategies for people: which there are, their gates, and where their settings are. 80 columns."""

from __future__ import annotations

import textwrap

from koordebpf.decision.strategies import STRATEGIES, section_of
from koordebpf.report.pages.columns import WIDTH, table_lines

_LEFT = 0


def strategies_page() -> str:
    """Return a row for each strategy in its order, and what each does."""
    rows = [
        (each.gate, "on" if each.is_on else "off", section_of(each) or "-", f"{at}.")
        for at, each in enumerate(STRATEGIES, start=1)
    ]
    table = table_lines(("GATE", "DEFAULT", "SETTINGS", "ORDER"), rows, _LEFT)
    width = max(len(each.gate) for each in STRATEGIES)
    summaries = [
        line
        for each in STRATEGIES
        for line in textwrap.wrap(
            f"{each.gate:<{width}}  {each.summary}", WIDTH, subsequent_indent=" " * (width + 2), break_on_hyphens=False
        )
    ]
    return "\n".join([*table, "", *summaries])
