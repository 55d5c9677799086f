"""Directories and Pod objects to one `BlockIOView`."""

from __future__ import annotations

from collections.abc import Iterable

from koordebpf.slo.pods.block_io import BLKIO_QOS_ANNOTATION
from koordebpf.state.block_io.measured import BlockIOMeasured, BlockIOPod, BlockIOView, PodDirectories
from koordebpf.state.pods.facts import PodFacts


def block_io_view(measured: BlockIOMeasured, pods: Iterable[PodFacts]) -> BlockIOView:
    """Return the node as block IO sees it. The same arguments give an equal view.

    Cost:    2 µs a pod.
    """
    known = {facts.uid: facts for facts in pods if facts.phase == "Running"}
    return BlockIOView(measured, tuple(_pod(known[each.uid], each) for each in measured.pods if each.uid in known))


# A sandbox does no IO, and is in no status: it takes no share of a limit.
def _pod(facts: PodFacts, directories: PodDirectories) -> BlockIOPod:
    meta, spec, status = facts.pod.metadata, facts.pod.spec, facts.pod.status
    statuses = (*(status.containerStatuses or ()), *(status.initContainerStatuses or ()))
    ids = {each.containerID.partition("://")[2] for each in statuses}
    return BlockIOPod(
        uid=facts.uid,
        key=f"{facts.namespace}/{facts.name}",
        path=directories.path,
        containers=tuple(sorted(path for id, path in directories.containers.items() if id in ids)),
        annotation=(meta.annotations or {}).get(BLKIO_QOS_ANNOTATION, ""),
        volumes=directories.volumes,
        spec_volumes=frozenset(each.name for each in spec.volumes or ()),
    )
