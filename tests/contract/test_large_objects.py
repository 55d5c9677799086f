"""Objects as large as etcd takes them, by anyone who may create them: they cost requests, and no view."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.contract.apiserver import Cluster, Exchange, gives, listing, pod, until
from tests.contract.sources import Open
from tests.contract.test_api_source import EXPIRED, complaint, names
from tests.support.patience import patience

LARGE = 1_400_000  # bytes: etcd takes 1.5 MiB


def large(name: str, number: int, size: int = LARGE) -> dict[str, Any]:
    """A pod with so many bytes of environment, in values of 100 KB."""
    made = pod(name, number)
    made["spec"]["containers"] = [
        {"name": "c", "env": [{"name": f"E{at}", "value": "x" * 100_000} for at in range(size // 100_000)]}
    ]
    return made


def pages(every: Sequence[dict[str, Any]]) -> Callable[[Exchange], None]:
    """Answer lists as an API server does: at most `limit` objects, and what continues them."""
    bodies = [json.dumps(each).encode() for each in every]

    def page(exchange: Exchange) -> None:
        query = exchange.request.query
        begin, limit = int(query.get("continue") or 0), int(query["limit"])
        end = min(begin + limit, len(bodies))
        frame = json.dumps(listing([], 9000, str(end) if end < len(bodies) else "")).encode()
        gives(200, frame.replace(b"[]", b"[" + b",".join(bodies[begin:end]) + b"]"))(exchange)

    return page


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


def test_a_server_that_knows_no_limit_is_not_believed_to_have_no_pods(open_source: Open, cluster: Cluster) -> None:
    whole = gives(200, listing([large(f"p{at:02}", at + 1) for at in range(10)], 9000))
    cluster.pods.lists += [gives(200, listing(cluster.pods.items, 50)), *[whole] * 20]
    cluster.pods.watches.append(gives(410, EXPIRED))
    source = open_source()
    until(lambda: names(source) == ["a", "b"], "the first list")
    assert "an answer of more than 8388608 bytes" in complaint(source, "list pods")
    assert names(source) == ["a", "b"]


PROGRAM = """
import sys, time
from pathlib import Path
from koordebpf.kube.http.transport import open_cluster
from koordebpf.kube.sources.api import ApiSource
def highest():
    (line,) = [each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmHWM")]
    return int(line.split()[1])

source = ApiSource(open_cluster(Path(sys.argv[1])), "n1")
before = highest()
source.start(lambda: None)
deadline = time.monotonic() + float(sys.argv[2])
while len(source.state().pods) < 500 and time.monotonic() < deadline:
    time.sleep(0.05)
print(len(source.state().pods), highest() - before, before)
source.close()
"""


@pytest.mark.slow
def test_500_of_them_take_little_memory(cluster: Cluster, kubeconfig: Any) -> None:
    answer = pages([large(f"p{at:03}", at + 1) for at in range(500)])
    cluster.pods.lists += [answer] * 1000
    command = [sys.executable, "-c", PROGRAM, str(kubeconfig), str(patience(120))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    known, grown_kib, before_kib = map(int, done.stdout.split())
    print(f"500 pods of 1.4 MB: {grown_kib / 1024:.0f} MiB more than the {before_kib / 1024:.0f} MiB of before")
    assert known == 500
    assert grown_kib < 64 << 10
