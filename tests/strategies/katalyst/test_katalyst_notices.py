"""What becomes of a notice of a soft eviction: the agent reports it in the round after."""

from __future__ import annotations

from pathlib import Path

from koordebpf.store.sink import NoticeEnded
from koordebpf.strategies.katalyst.run import KatalystEffects
from koordebpf.strategies.katalyst.sink import PodNotifier
from tests.contract.apiserver import until
from tests.strategies.katalyst.test_katalyst_frames import Node, kpod, soft


def test_a_notice_that_was_written_and_one_that_was_not_are_reported(tmp_path: Path) -> None:
    root = tmp_path / "notices"
    notifier, reported = PodNotifier(root), list[NoticeEnded]()
    effects = KatalystEffects(notifier, None, reported.append)
    node = Node([kpod("listens", notice=True), kpod("other", notice=True)])
    node.answer(soft("p", "listens", "other"))
    try:
        (root / "other@@__@@kat").mkdir(parents=True)
        (root / "other@@__@@kat" / "soft_eviction_notify").mkdir()
        effects.carry_out(node.made)
        until(lambda: notifier.sent + notifier.failed == 2, "two notices")
        node.round(1)
        effects.carry_out(node.made)
    finally:
        notifier.close()
    found = {each.notice.uid: each.problem for each in reported}
    assert found["listens"] is None
    assert found["other"]
    assert {each.notice.plugin for each in reported} == {"p"}
