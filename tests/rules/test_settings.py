"""What the configuration file says of each setting."""

from __future__ import annotations

from koordebpf.configuration.schema import settings
from tests.rules.offenders import report


def test_every_default_has_a_reason() -> None:
    found = settings()
    assert len(found) > 250
    report(
        [each.path for each in found if "Why" not in each.why or each.why.startswith("Why")],
        "the docstrings of these settings must say what they are, and then: Why DEFAULT: reason",
    )
