"""What a successor makes of the file that suppression left, and what the log says of a round that held no pod."""

from __future__ import annotations

from pathlib import Path

import pytest

from koordebpf.kernel.io.regular_file import KeptFile
from koordebpf.policy.reconcile import DesiredState
from koordebpf.strategies.cpu_suppress.decide import SuppressDecision
from koordebpf.strategies.cpu_suppress.plan import SuppressPlan
from koordebpf.strategies.cpu_suppress.run import Suppression, SuppressionMetrics, _read
from koordebpf.strategies.cpu_suppress.values import SuppressSettings, SuppressState
from tests.support.values.cpu_nodes import node


@pytest.mark.parametrize(
    "text", [b"", b"\xff", b"[]", b'{"later": ' * 20_000], ids=["empty", "no text", "array", "deep"]
)
def test_what_cannot_be_read_is_removed(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "suppression.json"
    path.write_bytes(text)
    assert _read(KeptFile(path, "a successor begins from nothing")) is None
    assert not path.exists()


class Writer:
    def apply(self, *_: object) -> None:
        pass


def test_why_no_pod_is_held_is_said_but_not_of_the_first_second(caplog: pytest.LogCaptureFixture) -> None:
    runner = Suppression(SuppressSettings(), Writer(), None, SuppressionMetrics())  # type: ignore[arg-type]
    with caplog.at_level("INFO", logger="koordebpf"):
        for word in ("first_sample", "no_best_effort", "no_best_effort", None, "no_best_effort"):
            plan = SuppressPlan(f"{word}", SuppressState(), DesiredState(""), skipped=word)
            made = SuppressDecision(state=plan.next, reason=plan.reason, skipped=plan.skipped, plan=plan)
            runner.carry_out({"suppress": made}, node())
    assert caplog.messages == ["best-effort pods' CPU is not held: no_best_effort"] * 2
