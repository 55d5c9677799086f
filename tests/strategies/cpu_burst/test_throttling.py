"""Who is throttled, read many times a second."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from koordebpf.errors import SupportError
from koordebpf.kernel.bpf.throttle_events import ThrottleEvents
from koordebpf.kernel.cgroup.hierarchy import ControllerMount
from koordebpf.strategies.cpu_burst.measure import ThrottlePoller, ThrottleWatch
from tests.contract.apiserver import until

PATHS = tuple(f"pods/pod/c{number}" for number in range(100))
QUOTA_US = 50_000


def quotas(*paths: str) -> dict[str, int]:
    return dict.fromkeys(paths, QUOTA_US)


def no_events() -> ThrottleEvents:
    raise SupportError("CPU throttling", "this kernel has no such tracepoint", "None on this kernel.")


class Tree:
    """A folder of cgroups whose cpu.stat is a file."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.mounts = {"cpu": ControllerMount(2, root)}
        for path in PATHS:
            (root / path).mkdir(parents=True)
            self.throttle(path, 0)

    def throttle(self, path: str, count: int, text: str = "nr_periods 9\nnr_throttled {}\n") -> None:
        (self.root / path / "cpu.stat").write_text(text.format(count))

    def use(self, milliseconds: int) -> None:
        """Say how much CPU time all pods have used."""
        (self.root / "pods/cpu.stat").write_text(f"usage_usec {milliseconds * 1000}\n")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_a_container_is_seen_once_when_it_was_throttled(tree: Tree):
    watch = ThrottlePoller(tree.mounts)
    watch.watched = quotas(*PATHS[:2])
    assert [watch.poll(), watch.poll()] == [False, False]
    tree.throttle(PATHS[1], 1)
    assert [watch.poll(), watch.poll()] == [True, False]


def test_of_many_each_is_looked_at_in_turn(tree: Tree):
    watch = ThrottlePoller(tree.mounts)
    watch.watched = quotas(*PATHS)
    for _ in range(2):
        watch.poll()
    assert watch.reads == 128
    tree.throttle(PATHS[99], 1)
    assert any([watch.poll(), watch.poll()])


def test_while_pods_use_less_than_throttles_one_none_is_read(tree: Tree):
    watch = ThrottlePoller(tree.mounts)
    watch.watched = {PATHS[0]: QUOTA_US, PATHS[1]: 4 * QUOTA_US}
    tree.use(1000)
    watch.poll()
    assert watch.reads == 2
    for used_ms in (1000, 1010, 1019):  # half of the smaller quota, less a slice
        tree.use(used_ms)
        assert not watch.poll()
    assert watch.reads == 2
    tree.use(1020)
    tree.throttle(PATHS[0], 1)
    assert watch.poll()
    assert watch.reads == 3
    tree.use(1095)
    tree.throttle(PATHS[1], 1)
    assert watch.poll()
    assert watch.reads == 5


def test_where_the_usage_of_all_pods_falls_each_is_read(tree: Tree):
    watch = ThrottlePoller(tree.mounts)
    watch.watched = quotas(*PATHS[:1])
    for used_ms in (1000, 5):
        tree.use(used_ms)
        watch.poll()
    assert watch.reads == 2


def test_one_that_is_gone_or_garbage_or_has_no_quota_hides_no_other(tree: Tree):
    watch = ThrottlePoller(tree.mounts)
    watch.watched = quotas("pods/pod/gone", *PATHS[:3])
    tree.throttle(PATHS[0], 0, "nr_periods x\nnr_throttled y\n")
    tree.throttle(PATHS[1], 0, "usage_usec 5\n")
    assert not watch.poll()
    tree.throttle(PATHS[2], 1)
    assert watch.poll()


def test_what_is_watched_no_more_is_forgotten(tree: Tree):
    watch = ThrottlePoller(tree.mounts)
    watch.watched = quotas(*PATHS[:1])
    watch.poll()
    watch.watched = quotas(*PATHS[1:2])
    watch.poll()
    tree.throttle(PATHS[0], 5)
    watch.watched = quotas(*PATHS[:1])
    assert not watch.poll()  # how often it was throttled in between says nothing of now


def test_what_waits_for_its_turn_is_not_read_once_it_is_watched_no_more(tree: Tree):
    watch = ThrottlePoller(tree.mounts)
    watch.watched = quotas(*PATHS)
    watch.poll()
    watch.watched = quotas(PATHS[99])
    watch.poll()
    assert watch.reads == 64 + 1


def test_what_is_still_watched_is_known_as_before(tree: Tree):
    watch = ThrottlePoller(tree.mounts)
    watch.watched = quotas(*PATHS[:2])
    watch.poll()
    tree.throttle(PATHS[0], 1)
    watch.watched = quotas(PATHS[0], PATHS[2])
    assert watch.poll()


def test_where_the_kernel_does_not_say_it_the_thread_reads_and_wakes_the_loop(tree: Tree):
    woken: list[float] = []
    with ThrottleWatch(tree.mounts, lambda: woken.append(time.monotonic()), no_events) as watch:
        watch.watched = quotas(*PATHS[:1])
        watch.start()
        until(lambda: watch.reads >= 2, "looks")
        assert not watch.poll()
        tree.throttle(PATHS[0], 1)
        until(lambda: woken, "a wake")
        assert [watch.poll(), watch.poll()] == [True, False]
