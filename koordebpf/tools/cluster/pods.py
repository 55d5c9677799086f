"""The pods of many nodes by what they use, as their agents measured them last."""

from __future__ import annotations

from typing import Literal

import msgspec

from koordebpf.errors import KubeError
from koordebpf.kube.body import MALFORMED, reason
from koordebpf.kube.remote.pods import RemotePod, pods_of
from koordebpf.report.top import SORTS, Sort, TopPage, TopRow, blamed, growth_text, time_text, used_text
from koordebpf.tools.cluster.asking import Agents, ask_all
from koordebpf.tools.cluster.status import kubectl_table


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


def top_pods(agents: Agents, namespace: str, selector: str, sort: Sort) -> TopPods:
    """Return the pods of a namespace, of all where it is empty, the largest first.

    `selector` is one of labels; what it chooses is asked of the API server, and only the nodes of those pods are asked.

    Raises:  KubeError: the pods cannot be listed.
    """
    asked, wanted = agents.by_node, None
    if namespace or selector:
        found = pods_of(agents.cluster.transport, namespace, selector)
        wanted = {each.key for each in found}
        nodes = {each.spec.nodeName for each in found}
        asked = {node: pod for node, pod in agents.by_node.items() if node in nodes}
    answers = ask_all(asked, lambda pod: _page(agents, pod), within_s=agents.within_s)
    rows = [
        PodOnNode(node, row)
        for node, page in answers.given.items()
        for row in page.rows
        if not row.name.startswith("? ") and (wanted is None or row.name in wanted)
    ]
    rows.sort(key=lambda each: (-SORTS[sort](each.row), each.row.name))
    return TopPods(
        "koordebpf.top-pods/v1", tuple(rows), tuple(f"{each.node}: {each.reason}" for each in answers.missing)
    )


def _page(agents: Agents, pod: RemotePod) -> TopPage:
    raw = agents.output(pod, "ask", "top")
    try:
        page = msgspec.json.decode(raw, type=TopPage | None)
    except MALFORMED as error:
        raise KubeError(f"its answer is no page of top, is it of another version? {reason(error)}") from error
    if page is None:
        raise KubeError("it has not measured its node yet")
    return page
