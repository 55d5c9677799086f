"""The page of `kubectl koordebpf top pods`."""

from __future__ import annotations

from typing import Literal

import msgspec

from koordebpf.report.cluster.table import kubectl_table
from koordebpf.report.top.cells import blamed, growth_text, time_text, used_text
from koordebpf.report.top.values import TopRow


class PodOnNode(msgspec.Struct, frozen=True):
    """A pod, and where it runs."""

    node: str
    row: TopRow


class TopPods(msgspec.Struct, frozen=True):
    """What `top pods -o json` prints. `missing`: nodes that did not answer, with the reason."""

    schema: Literal["koordebpf.top-pods/v1"]
    pods: tuple[PodOnNode, ...]
    missing: tuple[str, ...] = ()


def top_pods_page(top: TopPods, *, with_namespace: bool, is_wide: bool) -> str:
    """Return a line for each pod; wide: with its node, its priority, and whose shortage made it wait."""
    heading = ["POD", "QOS", "USED", "GROWTH/s", "SOME%", "FULL IN"]
    if with_namespace:
        heading = ["NAMESPACE", *heading]
    wide = ["PRIORITY", "BY", "NODE"] if is_wide else []
    return kubectl_table([*heading, *wide], [_row(each, with_namespace, is_wide) for each in top.pods])


def _row(pod: PodOnNode, with_namespace: bool, is_wide: bool) -> list[str]:
    row = pod.row
    namespace, _, name = row.name.partition("/")
    some = f"{row.shares.some.avg10:.1f}" if row.shares else ""
    cells = [name, row.qos, used_text(row), growth_text(row), some, time_text(row.full_in)]
    wide = ["" if row.priority is None else str(row.priority), blamed(row), pod.node] if is_wide else []
    return [*([namespace] if with_namespace else []), *cells, *wide]
