"""The kubelet source against a TLS server that misbehaves."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from koordebpf.attribution.static_pods import cgroup_names
from koordebpf.errors import ConfigError
from koordebpf.kube.http.transport import open_kubelet
from koordebpf.kube.sources.kubelet import KubeletSource
from koordebpf.state.pods.facts import pod_facts
from tests.contract.apiserver import Exchange, Reply, Server, gives, let_it_spin, pod, status, until

Open = Callable[..., KubeletSource]


def pod_list(*pods: object) -> dict[str, object]:
    return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": list(pods) or None}


class Pods:
    """Replies to the first questions, then a good one."""

    def __init__(self, server: Server) -> None:
        self.first: deque[Reply] = deque()
        self.good = pod_list(pod("a", 1), pod("b", 2))
        self.server = server
        server.on("/pods", self.reply)

    def reply(self, exchange: Exchange) -> None:
        (self.first.popleft() if self.first else gives(200, self.good))(exchange)


@pytest.fixture
def pods(kubelet: Server) -> Pods:
    return Pods(kubelet)


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first\n")
    return path


@pytest.fixture
def open_source(kubelet: Server, token: Path, certificate: tuple[Path, Path]) -> Iterator[Open]:
    opened: list[KubeletSource] = []

    def _open(
        wake: Callable[[], None] = lambda: None,
        *,
        ca_file: Path | None = certificate[0],
        insecure: bool = False,
        **options: object,
    ) -> KubeletSource:
        transport = open_kubelet(kubelet.url, token, ca_file, insecure=insecure)
        options = {"period_s": 0.05, "nudge_gap_s": 0.01, **options}
        source = KubeletSource(transport, "n1", **options)  # type: ignore[arg-type]
        opened.append(source)
        source.start(wake)
        return source

    yield _open
    for source in opened:
        source.close()


def names(source: KubeletSource) -> list[str]:
    return sorted(p.metadata.name for p in source.state().pods)


def complaint(source: KubeletSource, part: str) -> str:
    return str(until(lambda: next((p for p in source.state().problems if part in p), None), f"a problem: {part}"))


def test_pods_come_with_the_token_over_checked_tls(open_source: Open, pods: Pods) -> None:
    woken = threading.Event()
    source = open_source(wake=woken.set)
    until(lambda: names(source) == ["a", "b"], "the pods")
    assert woken.wait(30)
    assert source.state().synced_at_ns > 0
    assert source.state().node is None
    assert {r.headers["authorization"] for r in pods.server.requests} == {"Bearer first"}


def test_same_answer_is_a_sign_of_life_and_no_news(open_source: Open, pods: Pods) -> None:
    source = open_source()
    until(lambda: source.state().synced_at_ns, "the pods")
    version, at_ns = source.state().version, source.state().synced_at_ns
    until(lambda: source.state().synced_at_ns > at_ns, "the next answer")
    assert source.state().version == version


def test_changed_answer_replaces_all(open_source: Open, pods: Pods) -> None:
    source = open_source()
    until(lambda: names(source) == ["a", "b"], "the pods")
    version = source.state().version
    pods.good = pod_list(pod("b", 3), pod("c", 4))
    until(lambda: names(source) == ["b", "c"], "the new pods")
    assert source.state().version > version


def test_a_static_pod_is_marked_as_one_that_an_eviction_leaves_running(open_source: Open, pods: Pods) -> None:
    # The kubelet lists the static pod itself and no mirror pod; config.source is its own word, whatever a pod says.
    static, plain = pod("etcd-n1", 1, uid="9d0f8d3a"), pod("a", 2)
    hash_of_it = {"kubernetes.io/config.hash": "9d0f8d3a"}
    static["metadata"]["annotations"] = {"kubernetes.io/config.source": "file", **hash_of_it}
    plain["metadata"]["annotations"] = {"kubernetes.io/config.source": "api", **hash_of_it}
    pods.good = pod_list(static, plain)
    source = open_source()
    until(lambda: names(source) == ["a", "etcd-n1"], "the pods")
    state = source.state()
    assert {each.metadata.name: pod_facts(each).is_mirror for each in state.pods} == {"a": False, "etcd-n1": True}
    found = cgroup_names(state.pods)
    assert found.uids == {"9d0f8d3a": "9d0f8d3a", "uid-a": "uid-a"}
    (problem,) = found.problems  # the other one says it bears this name too
    assert problem.startswith("pod be/a: annotation kubernetes.io/config.hash") and "be/etcd-n1" in problem


def test_pods_of_another_node_are_left_out(open_source: Open, pods: Pods) -> None:
    elsewhere = pod("elsewhere", 5)
    elsewhere["spec"]["nodeName"] = "n2"
    pods.good = pod_list(pod("a", 1), elsewhere)
    source = open_source()
    until(lambda: source.state().synced_at_ns, "the pods")
    assert names(source) == ["a"]


def test_rotated_token_is_shown(open_source: Open, pods: Pods, token: Path) -> None:
    source = open_source()
    until(lambda: source.state().synced_at_ns, "the pods")
    # As kubelet does it: a new file in place of the old.
    fresh = token.with_name("fresh")
    fresh.write_text("second")
    fresh.rename(token)
    until(lambda: pods.server.requests[-1].headers["authorization"] == "Bearer second", "the new token")


def test_missing_token_is_a_problem_until_it_is_back(open_source: Open, pods: Pods, token: Path) -> None:
    source = open_source()
    until(lambda: source.state().synced_at_ns, "the pods")
    token.unlink()
    assert str(token) in complaint(source, "token")
    assert names(source) == ["a", "b"]
    token.write_text("third")
    until(lambda: source.state().problems == (), "health")


@pytest.mark.parametrize(
    ("reply", "part"),
    [
        (gives(200, pod_list()), "the list of pods is empty"),
        (gives(200, b'{"items": [{'), "is not a list of pods"),
        (gives(200, b'{"items": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "is not a list of pods: it is nested too"),
        (gives(500, b"internal"), "500"),
        (gives(403, b"Forbidden (user=agent, verb=get, resource=nodes, subresource=proxy)"), "nodes/proxy"),
        (lambda exchange: exchange.cut(), "connection"),
    ],
    ids=["empty", "half", "deep", "500", "403", "cut"],
)
def test_bad_answer_keeps_the_previous_pods_and_ages(reply: Reply, part: str, open_source: Open, pods: Pods) -> None:
    stuck = threading.Event()

    def bad(exchange: Exchange) -> None:
        stuck.set()
        reply(exchange)

    source = open_source()
    until(lambda: names(source) == ["a", "b"], "the pods")
    pods.first += [bad] * 1000
    until(stuck.is_set, "a bad answer")
    complaint(source, part)
    at_ns, count = source.state().synced_at_ns, len(pods.server.requests)
    assert names(source) == ["a", "b"]
    if "nodes/proxy" not in part:  # that one waits a minute
        until(lambda: len(pods.server.requests) > count, "the next question")
    assert source.state().synced_at_ns == at_ns
    assert names(source) == ["a", "b"]


def test_empty_first_answer_is_not_believed(open_source: Open, pods: Pods) -> None:
    pods.first.append(gives(200, pod_list()))
    source = open_source()
    until(lambda: names(source) == ["a", "b"], "the pods after the restart")
    assert source.state().problems == ()
    assert len(pods.server.requests) >= 2


def test_denied_is_no_hot_loop(open_source: Open, pods: Pods) -> None:
    pods.first += [gives(401, status(401, "Unauthorized", "no"))] * 1000
    source = open_source()
    assert "needs RBAC verb get on nodes/proxy" in complaint(source, "401")
    source.nudge()
    let_it_spin()
    source.close()
    assert len(pods.server.requests) == 1


def test_garbage_pod_does_not_cost_the_others(open_source: Open, pods: Pods) -> None:
    broken = pod("broken", 3)
    broken["status"] = 5
    pods.good = pod_list(pod("a", 1), broken)
    source = open_source()
    until(lambda: names(source) == ["a"], "the good pod")
    complaint(source, "be/broken")


def test_nudge_asks_at_once(open_source: Open, pods: Pods) -> None:
    source = open_source(period_s=3600.0)
    until(lambda: names(source) == ["a", "b"], "the pods")
    assert len(pods.server.requests) == 1
    pods.good = pod_list(pod("a", 1), pod("b", 2), pod("born", 3))
    source.nudge()
    until(lambda: "born" in names(source), "the pod that was just born")


def test_many_nudges_are_one_question(open_source: Open, pods: Pods) -> None:
    source = open_source(period_s=3600.0, nudge_gap_s=3600.0)
    until(lambda: names(source) == ["a", "b"], "the pods")
    for _ in range(1000):
        source.nudge()
    let_it_spin()
    source.close()
    assert len(pods.server.requests) == 1


def test_certificate_of_another_is_refused(open_source: Open, pods: Pods, tmp_path: Path) -> None:
    import ssl

    roots = tmp_path / "roots.pem"
    pem = "".join(ssl.DER_cert_to_PEM_cert(c) for c in ssl.create_default_context().get_ca_certs(binary_form=True)[:3])
    assert pem, "this machine has no root certificates"
    roots.write_text(pem)
    source = open_source(ca_file=roots)
    assert "certificate verify failed" in complaint(source, "connection")
    assert pods.server.requests == []


def test_unchecked_certificate_must_be_asked_for(open_source: Open, pods: Pods) -> None:
    source = open_source(ca_file=None, insecure=True)
    until(lambda: names(source) == ["a", "b"], "the pods")


def test_close_ends_the_thread_while_the_kubelet_hangs(open_source: Open, pods: Pods) -> None:
    pods.first.append(lambda exchange: exchange.hold())
    source = open_source()
    until(lambda: pods.server.held, "a hanging request")
    source.close()
    assert not [t for t in threading.enumerate() if t.name == "kube-kubelet"]


@pytest.mark.parametrize(
    ("url", "ca_file", "insecure", "rule"),
    [
        ("http://127.0.0.1:10255", None, True, "must begin with https://"),
        ("https://127.0.0.1:10250", None, False, "give a CA file"),
        ("https://127.0.0.1:10250", Path("/nonexistent/ca.crt"), False, "must be a readable file"),
    ],
)
def test_unusable_settings_are_refused(url: str, ca_file: Path | None, insecure: bool, rule: str, token: Path) -> None:
    with pytest.raises(ConfigError, match=rule):
        open_kubelet(url, token, ca_file, insecure=insecure)


def test_missing_token_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be a readable file"):
        open_kubelet("https://127.0.0.1:10250", tmp_path / "none", None, insecure=True)
