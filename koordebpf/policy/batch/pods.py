"""What a node's pods take from batch resources, added up in one pass over the list and the report."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from koordebpf.policy.batch.facts import BATCH_BANDS, MID_BANDS, PodRequest, PodUse


class Taken(msgspec.Struct, gc=False):
    """Of one resource, by pods that are neither batch nor free.

    Attributes:
        used: what pods with a report use; of CPU without those of class LSE.
        lse: requests of CPU of pods of class LSE with a report: what they do not use is not reclaimed.
        unreported: requests of pods without a report.
        gone: what pods use that are in the report and no longer in the list.
        requested: requests of all pods of the list.
        highest: of each pod with a report the higher of use and request.
        prod: requests of those that are not mid either.
    """

    used: int = 0
    lse: int = 0
    unreported: int = 0
    gone: int = 0
    requested: int = 0
    highest: int = 0
    prod: int = 0


class PodSums(msgspec.Struct, gc=False):
    """Both resources, and how many pods each count comes from."""

    cpu: Taken
    memory: Taken
    reported: int = 0
    lse: int = 0
    unreported: int = 0
    gone: int = 0
    listed: int = 0


def pod_sums(pods: Iterable[PodRequest], uses: Iterable[PodUse]) -> PodSums:
    """Return what the pods take.

    Cost:    0.6 µs each pod.
    """
    cpu, memory = Taken(), Taken()
    sums = PodSums(cpu, memory)
    reported = {use.key: use for use in uses}
    for pod in pods:
        use = reported.pop(pod.key, None)
        band = pod.band
        if band in BATCH_BANDS:
            continue
        wanted_cpu, wanted_memory = pod.cpu_millicpu, pod.memory_bytes
        sums.listed += 1
        cpu.requested += wanted_cpu
        memory.requested += wanted_memory
        if band not in MID_BANDS:
            cpu.prod += wanted_cpu
            memory.prod += wanted_memory
        if use is None:
            sums.unreported += 1
            cpu.unreported += wanted_cpu
            memory.unreported += wanted_memory
            continue
        sums.reported += 1
        used_cpu, used_memory = use.cpu_millicpu, use.memory_bytes
        if pod.is_lse:
            sums.lse += 1
            cpu.lse += wanted_cpu
        else:
            cpu.used += used_cpu
        memory.used += used_memory
        cpu.highest += wanted_cpu if wanted_cpu > used_cpu else used_cpu
        memory.highest += wanted_memory if wanted_memory > used_memory else used_memory
    for use in reported.values():
        if use.band not in BATCH_BANDS:
            sums.gone += 1
            cpu.gone += use.cpu_millicpu
            memory.gone += use.memory_bytes
    return sums
