"""The page on prediction has every setting beside koordlet's flag."""

from __future__ import annotations

import re

from koordebpf.configuration.schema import settings
from tests.rules.offenders import report
from tests.rules.pages import DOCS, name_of, rows

PAGE = DOCS / "colocation/prediction.md"


def test_every_setting_stands_on_the_page() -> None:
    ours = {each.path.removeprefix("prediction.") for each in settings() if each.path.startswith("prediction.")}
    named = {name for row in rows(PAGE, "## koordlet's flags") for name in re.findall(r"`(\w+)`", row.cells[1])}
    assert ours
    report(sorted(ours - named), f"{name_of(PAGE)}: the table of koordlet's flags must have these settings")
