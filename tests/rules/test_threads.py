"""One module starts threads, and no unexpected error ends them; the others catch every error themselves."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.rules.modules import MODULES, PACKAGE, tree
from tests.rules.offenders import report

THE_DOOR = "kernel/io/worker.py"
# Each of these catches every error in its loop, and says what became of what it was doing.
_CATCHING = {
    "act/evict/api.py",
    "act/evict/cgroup.py",
    "act/evict/cri.py",
    "act/eviction_hooks/runner.py",
    "act/report/node_metric.py",
    "act/taint/worker.py",
    "act/topology/reporter.py",
    "collect/katalyst/rootfs.py",
    "controller/election.py",
    "kube/cache/reflector.py",
    "kube/sources/kubelet.py",
    "report/events.py",
    "report/http/listener.py",
    "store/recorder/recorder.py",
    "kernel/proc/core_sched.py",  # whose caller waits for it, and raises what it met
}


def _starts() -> Iterator[tuple[str, int]]:
    for path in MODULES:
        for node in ast.walk(tree(path)):
            if (
                isinstance(node, ast.Attribute)
                and node.attr == "Thread"
                and getattr(node.value, "id", "") == "threading"
            ):
                yield path.relative_to(PACKAGE).as_posix(), node.lineno


def _catches_all(name: str) -> bool:
    handlers = (node for node in ast.walk(tree(PACKAGE / name)) if isinstance(node, ast.ExceptHandler))
    return any(isinstance(each.type, ast.Name) and each.type.id == "Exception" for each in handlers)


def _makes(name: str) -> bool:
    calls = (node for node in ast.walk(tree(PACKAGE / name)) if isinstance(node, ast.Call))
    return any(isinstance(each.func, ast.Attribute) and each.func.attr == "Thread" for each in calls)


def test_threads_are_started_by_one_module() -> None:
    elsewhere = (
        f"{name}:{line}" for name, line in _starts() if name != THE_DOOR and name not in _CATCHING and _makes(name)
    )
    report(elsewhere, f"start it by Supervisor or Worker of {THE_DOOR}: an unexpected error would end it unseen")


def test_the_others_are_there_and_catch_every_error() -> None:
    report((name for name in sorted(_CATCHING) if not _makes(name)), "it starts no thread: take it out of the list")
    report((name for name in sorted(_CATCHING) if not _catches_all(name)), "it has to catch Exception in its loop")
