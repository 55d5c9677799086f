"""What is done for a decision of Katalyst's manager beside evictions: notices in pods' directories, and taints."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from koordebpf.act.notify.notifier import PodNotifier
from koordebpf.policy.katalyst.manager import KatalystDecision
from koordebpf.slo.katalyst.taints import cnr_taints_of, taints_of
from koordebpf.state.katalyst.facts import REPORT_CNR_TAINT, REPORT_TAINT
from koordebpf.store.sink import NoticeEnded

if TYPE_CHECKING:
    from koordebpf.act.taint.cnr import CnrTainter
    from koordebpf.act.taint.worker import Tainter

    Tainters = tuple[Tainter, CnrTainter]  # of the Node and of the CustomNodeResource


class KatalystEffects:
    """Notices in pods' directories, and taints of the Node and its CustomNodeResource; of what is None, none.

    `report` takes what became of notices.
    """

    def __init__(
        self, notifier: PodNotifier | None, tainters: Tainters | None, report: Callable[[NoticeEnded], None]
    ) -> None:
        self._notifier = notifier
        self._tainters = tainters
        self._report = report

    def carry_out(self, made: KatalystDecision) -> None:
        """Notify and taint as the decision says. Does not wait."""
        if self._notifier is not None:
            self._notifier.keep(made.listening)
            for notice in made.notices:
                self._notifier.notify(notice)
            for notice, problem in self._notifier.take_ended():
                self._report(NoticeEnded(notice, problem, time.monotonic_ns(), time.time()))
        if self._tainters is not None:
            of_node = [each.condition for each in made.reported if each.condition.kind == "node"]
            of_cnr = [each.condition for each in made.reported if each.condition.kind == "cnr"]
            node, cnr = self._tainters
            node.wish(frozenset(taint for each in of_node for taint in taints_of(each.name, each.effects)))
            cnr.wish(frozenset(taint for each in of_cnr for taint in cnr_taints_of(each.name, each.effects)))

    @property
    def problems(self) -> dict[str, str | None]:
        """Why taints could not be set last, by what sets them; None: they are."""
        if self._tainters is None:
            return {}
        node, cnr = self._tainters
        return {REPORT_TAINT: node.problem, REPORT_CNR_TAINT: cnr.problem}
