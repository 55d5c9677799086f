"""How long after a hog has crossed the threshold it is killed while something else hangs, beside it undisturbed."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from koordebpf.kernel.cgroup.kill import raise_thread_priority
from koordebpf.report.pages.explain import decode_audit
from koordebpf.store.audit_record import AuditRecord
from tests.bench.contenders import THRESHOLD_PERCENT
from tests.bench.figure import figure
from tests.bench.nodes import GIB, TMPFS, FullNode, full_node, wait_until_below
from tests.bench.report import CannotMeasure, Report
from tests.contract.apiserver import hold_open, until
from tests.contract.cri_runtime import Runtime
from tests.host.live_agent import LiveAgent
from tests.host.live_cluster import LiveCluster, kubeconfig
from tests.support.hung import CannotHang, FullPipe, hung_filesystem
from tests.support.loads.workloads import Hog

_RATE_MIB_S = 1024
_DISK_BYTES = 64 << 10
_SOCKETS = 8
_BYTE_EVERY_S = 1.0
_METHOD = "koordebpf run --enforce, 110 pods / 330 containers, hog at 1 GiB/s; from the hog's own mark at the byte to"
_KILL = f"{_METHOD} outcome.sent_ns, when every process had its signal"


class _Fault:
    """A fault in force, and how the agent is started beside it; undisturbed where nothing is overridden."""

    name = "undisturbed"
    method = _KILL

    def __init__(self, node: FullNode, folder: Path, stack: contextlib.ExitStack) -> None:
        self.node = node
        self.folder = folder
        self.stack = stack
        self.output: int | None = None
        self.others: list[str] = []  # who was evicted beside the hog
        manifest = node.cgroup.write_manifest(folder / "pods.json", THRESHOLD_PERCENT, THRESHOLD_PERCENT - 5)
        self.source: tuple[object, ...] = ("--pods", manifest)
        self.more: tuple[object, ...] = ("--executor", "cgroup")
        self.prepare()

    def prepare(self) -> None:
        """Make what the agent is started with."""

    def begin(self, agent: LiveAgent) -> None:
        """Bring about what begins once the agent is ready."""

    def sent_ns(self, agent: LiveAgent, number: int, hog: Hog) -> int:
        """Return when eviction `number`, counted from 1, was carried out."""
        records = until(lambda: found if len(found := _decisions(agent)) >= number else None, "the decision")
        found = {outcome.uid: outcome for outcome in records[number - 1].outcomes}
        sent_ns = found[self.node.hog_uid].sent_ns if self.node.hog_uid in found else None
        if sent_ns is None:
            raise RuntimeError("; ".join(f"{each.name}: {each.result}: {each.detail}" for each in found.values()))
        self.others += [f"{each.name} ({each.detail})" for each in found.values() if each.uid != self.node.hog_uid]
        return sent_ns


class _BlockedOutput(_Fault):
    name = "stdout and stderr blocked"

    def prepare(self) -> None:
        pipe = FullPipe()
        self.stack.callback(pipe.close)
        self.output = pipe.writing
        self.more += ("--audit", "-")


class _FullDisk(_Fault):
    name = "disk full"

    def prepare(self) -> None:
        path = self.folder / "disk"
        path.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", path], check=False)
        if mounted.returncode:
            raise CannotMeasure("no tmpfs can be mounted to be filled")
        self.stack.callback(subprocess.run, ["umount", path], check=True)
        (path / "ballast").write_bytes(bytes(_DISK_BYTES - 4096))
        self.more += ("--audit", path / "audit.jsonl")


class _HungDisk(_Fault):
    name = "disk hung"

    def prepare(self) -> None:
        path = self.folder / "hung"
        path.mkdir()
        try:
            self.stack.enter_context(hung_filesystem(path))
        except CannotHang as error:
            raise CannotMeasure(str(error)) from None
        self.more += ("--audit", path / "audit.jsonl")


class _HungServer(_Fault):
    name = "API server hung"

    def prepare(self) -> None:
        self.cluster = LiveCluster(self.node.cgroup, THRESHOLD_PERCENT)
        self.stack.callback(self.cluster.close)
        config = kubeconfig(self.folder / "kubeconfig", self.cluster.server.url)
        self.source = ("--source", "api", "--node-name", "n1", "--kubeconfig", config)
        self.more += ("--pods-max-age-s", 3600)

    def begin(self, agent: LiveAgent) -> None:
        for path in ("/api/v1/pods", "/api/v1/nodes", "/apis/slo.koordinator.sh/v1alpha1/nodeslos"):
            self.cluster.server.on(path, hold_open)
        self.cluster.is_cut = True  # watching clients connect again, and are not answered


class _HungRuntime(_Fault):
    """The container that is stopped is known; the list that would follow names no other one."""

    name = "runtime hung"
    method = f"{_METHOD} StopContainer at a runtime that does not answer it"

    def prepare(self) -> None:
        # A runtime is not the bench: it does not wait for a processor that the hog keeps busy.
        raise_thread_priority()
        self.runtime = Runtime(self.folder / "cri.sock")
        os.setpriority(os.PRIO_PROCESS, 0, 0)
        self.stack.callback(self.runtime.close)
        self.runtime.hold.clear()
        self.more = ("--executor", "cri", "--cri-socket", self.folder / "cri.sock")

    def sent_ns(self, agent: LiveAgent, number: int, hog: Hog) -> int:
        asked_ns: int = until(lambda: self.runtime.asked_ns[number - 1 :], "StopContainer")[0]
        hog.process.kill()
        self.runtime.hold.set()  # so that the next one can be measured
        records = until(lambda: found if len(found := _decisions(agent)) >= number else None, "the decision")
        until(lambda: not _is_open(_decisions(agent)[len(records) - 1]), "the outcome")
        self.runtime.hold.clear()
        return asked_ns


class _SlowSockets(_Fault):
    name = "8 slow sockets"

    def begin(self, agent: LiveAgent) -> None:
        is_over = threading.Event()
        thread = threading.Thread(target=_dribble, args=(agent.port, is_over))
        thread.start()
        self.stack.callback(thread.join)
        self.stack.callback(is_over.set)


_FAULTS = (_Fault, _BlockedOutput, _FullDisk, _HungDisk, _HungServer, _HungRuntime, _SlowSockets)


def faults(report: Report) -> None:
    """Burst with each fault in force on one node, in rounds: what else the machine does meets all of them."""
    rounds, n = (1, 5) if report.quick else (6, 5)
    samples: dict[type[_Fault], list[float]] = {kind: [] for kind in _FAULTS}
    with full_node() as node:
        Hog(node.ballast, node.cgroup.limit_bytes // 2 >> 20, huge=True, hold_s=0).story()  # as in `reaction`
        for number in range(1, rounds + 1):
            for kind in list(samples):
                try:
                    samples[kind] += _series(report, node, kind, n)
                except CannotMeasure as error:
                    report.cannot(f"{kind.name}: {error}")
                    del samples[kind]
            report.say(f"round {number} of {rounds}")
    for kind, found in samples.items():
        report.add(figure(f"crossed → kill, {kind.name}", "ms", found, kind.method, reach_p99=15))


def _series(report: Report, node: FullNode, kind: type[_Fault], n: int) -> list[float]:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=TMPFS)))
        fault = kind(node, folder, stack)
        given = ("--node-cgroup", node.cgroup.path, "--enforce", "--evictions-per-minute", 1000)
        agent = stack.enter_context(
            LiveAgent(folder, *fault.source, *given, *fault.more, output=fault.output, keeps_frames=False)
        )
        agent.becomes_ready()
        fault.begin(agent)
        samples: list[float] = []
        number = 0
        while len(samples) < n:
            number += 1
            if number > 2 * n + 3:
                raise RuntimeError(f"{kind.name}: the hog said {len(samples)} times of {number} when it crossed")
            wait_until_below(node.usage_file, GIB // 4)
            time.sleep(1 + random.random() * 0.5)
            mark = node.usage_at(node.threshold_bytes(THRESHOLD_PERCENT))
            more = ("--mark-file", node.usage_file, "--mark-bytes", mark, *node.hog_joins_too)
            hog = Hog(node.hog, node.cgroup.limit_bytes // 2 >> 20, *more, rate_mib_s=_RATE_MIB_S, hold_s=3)
            try:
                sent_ns = fault.sent_ns(agent, number, hog)
                story = hog.story()
            finally:
                hog.stop()
            if "mark" in story:  # killed in the page fault that crossed, it has not come to say so
                samples.append((sent_ns - story["mark"]) / 1e6)
        if fault.others:
            report.say(f"{kind.name}: evicted beside the hog: {', '.join(fault.others)}")
        return samples


def _decisions(agent: LiveAgent) -> list[AuditRecord]:
    (path,) = agent.run_dir.glob("*/acting.sock")
    with socket.socket(socket.AF_UNIX) as asked:
        asked.settimeout(10)
        asked.connect(str(path))
        asked.sendall(b"GET /decisions HTTP/1.0\r\n\r\n")
        answer = b""
        while part := asked.recv(1 << 16):
            answer += part
    records, problems = decode_audit(answer.partition(b"\r\n\r\n")[2], str(path))
    if problems:
        raise RuntimeError(problems[0])
    return [record for record in records if record.outcomes]


def _is_open(record: AuditRecord) -> bool:
    return any(outcome.result.value == "sent" for outcome in record.outcomes)


def _dribble(port: int, is_over: threading.Event) -> None:
    # A header that never ends, a byte at a time; one that is closed is opened again.
    held: list[socket.socket] = []
    while not is_over.wait(_BYTE_EVERY_S):
        for each in held[:]:
            try:
                each.sendall(b"x")
            except OSError:
                each.close()
                held.remove(each)
        while len(held) < _SOCKETS:
            held.append(socket.create_connection(("127.0.0.1", port), timeout=5))
            held[-1].sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
    for each in held:
        each.close()
