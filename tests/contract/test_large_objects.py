"""Objects as large as etcd takes them, by anyone who may create them: they cost requests, and no view."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from koordebpf.kube.http.transport import open_kubelet
from koordebpf.kube.sources.api import ApiSource
from koordebpf.kube.sources.kubelet import KubeletSource
from tests.contract.apiserver import Cluster, Collection, Exchange, Server, gives, listing, pod, until
from tests.contract.sources import Open
from tests.contract.test_api_source import EXPIRED, complaint, names
from tests.support.patience import patience

LARGE = 1_400_000  # bytes: etcd takes 1.5 MiB
_VALUE = "x" * 100_000  # one for all: 500 pods are 700 MB


def large(name: str, number: int, size: int = LARGE) -> dict[str, Any]:
    """A pod with so many bytes of environment, in values of 100 KB."""
    made = pod(name, number)
    made["spec"]["containers"] = [
        {"name": "c", "env": [{"name": f"E{at}", "value": _VALUE} for at in range(size // len(_VALUE))]}
    ]
    return made


def pages(every: Sequence[dict[str, Any]]) -> Callable[[Exchange], None]:
    """Answer lists as an API server does: at most `limit` objects, one by one, and what continues them."""

    def page(exchange: Exchange) -> None:
        query = exchange.request.query
        begin, limit = int(query.get("continue") or 0), int(query["limit"])
        end = min(begin + limit, len(every))
        sends(listing([], 9000, str(end) if end < len(every) else ""), every[begin:end])(exchange)

    return page


def sends(frame: dict[str, Any], items: Sequence[dict[str, Any]]) -> Callable[[Exchange], None]:
    """Answer with a list, until the client has enough."""
    head, _, tail = json.dumps(frame).encode().partition(b"[]")
    encoded = [json.dumps(each).encode() for each in items]

    def answer(exchange: Exchange) -> None:
        exchange.stream()
        exchange.chunk(head)
        for at, each in enumerate(encoded):
            exchange.chunk((b"," if at else b"[") + each)
        exchange.chunk((b"]" if items else b"[]") + tail)
        exchange.end()

    return answer


def test_sixty_large_pods_are_known_as_all_others(open_source: Open, cluster: Cluster) -> None:
    every = [large(f"p{at:02}", at + 1) for at in range(60)]
    cluster.pods.lists += [pages(every)] * 200
    source = open_source()
    until(lambda: len(source.state().pods) == 60, "all pods", 30)
    assert source.state().problems == ()
    limits = [int(each.query["limit"]) for each in cluster.pods.seen_lists]
    assert limits[:5] == [500, 125, 31, 7, 1]
    assert len(limits) < 5 + 60


def test_one_that_is_too_large_alone_is_left_out_and_named(open_source: Open, cluster: Cluster) -> None:
    every = [large("a", 1, 100_000), large("monster", 2, 9_000_000), large("z", 3, 100_000)]
    cluster.pods.lists += [pages(every)] * 20
    source = open_source()
    until(lambda: names(source) == ["a", "z"], "the others", 30)
    said = complaint(source, "monster")
    assert "be/monster cannot be read and is left out: it has more than 8388608 bytes" in said


def test_all_pods_of_a_server_that_knows_no_limit_are_known(open_source: Open, cluster: Cluster) -> None:
    every = json.dumps(listing([large(f"p{at:02}", at + 1) for at in range(60)], 9000)).encode()
    cluster.pods.lists += [gives(200, every)] * 20
    source = open_source()
    until(lambda: len(source.state().pods) == 60, "all pods", 60)
    assert source.state().problems == ()


def test_one_that_is_too_large_is_left_out_of_a_list_without_pages(open_source: Open, cluster: Cluster) -> None:
    every = [large("a", 1, 100_000), large("monster", 2, 9_000_000), large("z", 3, 100_000)]
    cluster.pods.lists += [gives(200, listing(every, 9000))] * 20
    source = open_source()
    until(lambda: names(source) == ["a", "z"], "the others", 30)
    assert "be/monster cannot be read and is left out" in complaint(source, "monster")


def test_a_large_list_that_is_cut_is_not_believed(open_source: Open, cluster: Cluster) -> None:
    whole = json.dumps(listing([large(f"p{at:02}", at + 1) for at in range(10)], 9000)).encode()
    cluster.pods.lists += [gives(200, listing(cluster.pods.items, 50)), *[gives(200, whole[:-3])] * 20]
    cluster.pods.watches.append(gives(410, EXPIRED))
    source = open_source()
    until(lambda: names(source) == ["a", "b"], "the first list")
    assert "the answer is not a list: it ends before its end" in complaint(source, "list pods")
    assert names(source) == ["a", "b"]


def labelled(name: str, number: int) -> dict[str, Any]:
    """A pod with more labels than are kept, and two that decisions read."""
    labels = {**{f"a{at}": "" for at in range(20_000)}, "koordinator.sh/qosClass": "BE", "z": ""}
    made = pod(name, number)
    made["metadata"] |= {"labels": labels}
    return made


def is_bounded(source: ApiSource | KubeletSource, name: str) -> bool:
    (found,) = (each for each in source.state().pods if each.metadata.name == name)
    labels = found.metadata.labels or {}
    said = f"pods: be/{name} has more than 192 KiB: {20_002 - len(labels)} of 20002 labels are not kept"
    return labels.get("koordinator.sh/qosClass") == "BE" and len(labels) < 2_000 and said in source.state().problems


def test_of_one_with_more_labels_than_are_kept_those_are_that_decisions_read(
    open_source: Open, cluster: Cluster
) -> None:
    steps: list[Exchange] = []

    def watch(exchange: Exchange) -> None:
        exchange.stream()
        steps.append(exchange)
        exchange.hold()

    cluster.pods.items = [labelled("a", 1), pod("b", 2)]
    cluster.pods.watches.append(watch)
    source = open_source(keys=frozenset({"koordinator.sh/qosClass"}))
    until(lambda: len(source.state().pods) == 2 and steps, "both")
    assert is_bounded(source, "a")
    steps[0].event("MODIFIED", labelled("b", 201))
    until(lambda: is_bounded(source, "b"), "the same by the watch")


def test_so_it_is_of_a_kubelets(kubelet: Server, certificate: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "token").write_text("first")
    transport = open_kubelet(kubelet.url, tmp_path / "token", certificate[0], insecure=False)
    source = KubeletSource(transport, "n1", period_s=0.2, keys=frozenset({"koordinator.sh/qosClass"}))
    kubelet.on("/pods", kubelets(labelled("a", 1), pod("b", 2)))
    source.start(lambda: None)
    try:
        until(lambda: len(source.state().pods) == 2, "both")
        assert is_bounded(source, "a")
    finally:
        source.close()


@pytest.fixture
def kubelet_source(kubelet: Server, certificate: tuple[Path, Path], tmp_path: Path) -> Iterator[KubeletSource]:
    (tmp_path / "token").write_text("first")
    transport = open_kubelet(kubelet.url, tmp_path / "token", certificate[0], insecure=False)
    source = KubeletSource(transport, "n1", period_s=0.2)
    yield source
    source.close()


def kubelets(*every: dict[str, Any]) -> Callable[[Exchange], None]:
    """Answer as a kubelet does: all its pods."""
    return gives(200, json.dumps({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": every}).encode())


def test_sixty_large_pods_of_a_kubelet_are_known(kubelet_source: KubeletSource, kubelet: Server) -> None:
    every = [large(f"p{at:02}", at + 1) for at in range(60)]
    kubelet.on("/pods", kubelets(*every))
    kubelet_source.start(lambda: None)
    until(lambda: len(kubelet_source.state().pods) == 60, "all pods", 60)
    assert kubelet_source.state().problems == ()


@pytest.mark.slow  # such a list is asked for rarely: it takes CPU
def test_sixty_large_pods_are_read_again_for_what_changed(kubelet_source: KubeletSource, kubelet: Server) -> None:
    every = [large(f"p{at:02}", at + 1) for at in range(60)]
    kubelet.on("/pods", kubelets(*every))
    kubelet_source.start(lambda: None)
    until(lambda: len(kubelet_source.state().pods) == 60, "all pods", 60)
    version, at_ns = kubelet_source.state().version, kubelet_source.state().synced_at_ns
    until(lambda: kubelet_source.state().synced_at_ns > at_ns, "the same once more", 60)
    assert kubelet_source.state().version == version
    kubelet.on("/pods", kubelets(*every[1:], large("new", 61)))
    until(lambda: "new" in {each.metadata.name for each in kubelet_source.state().pods}, "a change", 60)
    assert len(kubelet_source.state().pods) == 60


@pytest.mark.parametrize("beside", [0, 12])
def test_one_pod_of_a_kubelet_that_is_too_large_is_left_out_and_named(
    kubelet_source: KubeletSource, kubelet: Server, beside: int
) -> None:
    others = [large(f"p{at:02}", at + 1) for at in range(beside)]
    kubelet.on("/pods", kubelets(large("a", 100, 100_000), large("monster", 101, 17_000_000), *others))
    kubelet_source.start(lambda: None)
    until(lambda: len(kubelet_source.state().pods) == 1 + beside, "the others", 30)
    assert kubelet_source.state().problems == (
        "pods: be/monster cannot be read and is left out: it has more than 8388608 bytes",
    )


PROGRAM = """
import sys, time
from pathlib import Path
from koordebpf.kube.http.transport import open_cluster, open_kubelet
from koordebpf.kube.sources import kubelet
from koordebpf.kube.sources.api import ApiSource, Wanted
from koordebpf.kube.sources.kubelet import KubeletSource
def highest():
    (line,) = [each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM")]
    return int(line.split()[1])

count, within_s, *where = sys.argv[1:]
kubelet._ANSWER_S = float(within_s)  # what it takes is measured, not how busy this machine is
if len(where) == 1:
    source = ApiSource(open_cluster(Path(where[0])), "n1", wanted=Wanted(namespace_labels=frozenset({"a"})))
else:
    source = KubeletSource(open_kubelet(where[0], Path(where[1]), Path(where[2]), insecure=False), "n1")
before = highest()
source.start(lambda: None)
deadline = time.monotonic() + float(within_s)
if int(count):
    while len(source.state().pods) < int(count) and time.monotonic() < deadline:
        time.sleep(0.05)
else:
    sys.stdin.read()  # until all is read
print(len(source.state().pods), highest() - before, before, time.process_time())
source.close()
"""


def assert_little_memory(count: int, *where: object) -> float:
    """Learn so many pods in a process of its own; return the seconds of CPU that it took."""
    command = [sys.executable, "-c", PROGRAM, str(count), str(patience(300)), *map(str, where)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    known, grown_kib, before_kib, cpu_s = map(float, done.stdout.split())
    print(f"{count} pods of 1.4 MB: {grown_kib / 1024:.0f} MiB above {before_kib / 1024:.0f} MiB; {cpu_s:.1f} s of CPU")
    assert known == count
    assert grown_kib < 64 << 10
    return cpu_s


@pytest.mark.slow
def test_500_of_them_take_little_memory(cluster: Cluster, kubeconfig: Path) -> None:
    cluster.pods.lists += [pages([large(f"p{at:03}", at + 1) for at in range(500)])] * 1000
    assert_little_memory(500, kubeconfig)


@pytest.mark.slow
@pytest.mark.parametrize("resource", ["pdbs", "namespaces"])  # of the others each agent asks for one by its name
def test_500_of_what_else_is_listed_take_little_memory(cluster: Cluster, kubeconfig: Path, resource: str) -> None:
    made = {"metadata": {"namespace": "be"}, "spec": {}, "status": {}}
    every = [
        made
        | {
            "metadata": {"namespace": "be", "name": f"n{at:03}", "uid": f"u{at}", "resourceVersion": str(at + 1)}
            | {"annotations": {f"e{part}": _VALUE for part in range(LARGE // len(_VALUE))}}
        }
        for at in range(500)
    ]
    collection: Collection = getattr(cluster, resource)
    collection.lists += [pages(every)] * 1000
    command = [sys.executable, "-c", PROGRAM, "0", "0", str(kubeconfig)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        until(
            lambda: collection.seen_watches,
            lambda: f"{len(collection.seen_lists)} lists, {cluster.server.requests[-5:]}",
            15,
        )
        out, _ = process.communicate("")
    grown_kib = float(out.split()[1])
    print(f"500 {resource} of 1.4 MB: {grown_kib / 1024:.0f} MiB")
    assert len(collection.seen_lists) > 10
    assert grown_kib < 64 << 10


@pytest.mark.slow
def test_60_of_a_server_that_knows_no_limit_take_little_memory(cluster: Cluster, kubeconfig: Path) -> None:
    cluster.pods.lists += [sends(listing([], 9000), [large(f"p{at:02}", at + 1) for at in range(60)])] * 20
    assert_little_memory(60, kubeconfig)


@pytest.mark.slow
@pytest.mark.parametrize("count", [60, 500])
def test_those_of_a_kubelet_take_little_memory(
    kubelet: Server, certificate: tuple[Path, Path], tmp_path: Path, count: int
) -> None:
    (tmp_path / "token").write_text("first")
    every = [large(f"p{at:03}", at + 1) for at in range(count)]
    kubelet.on("/pods", sends({"kind": "PodList", "metadata": {}, "items": []}, every))
    cpu_s = assert_little_memory(count, kubelet.url, tmp_path / "token", certificate[0])
    assert cpu_s < 30  # of a kubelet's answer, which then comes in time where there is a CPU for it
