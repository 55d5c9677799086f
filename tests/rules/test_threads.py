"""One module starts threads, and no unexpected error ends them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.rules.modules import MODULES, PACKAGE, tree
from tests.rules.offenders import report

THE_DOOR = "kernel/io/worker.py"
# What starts a thread, by its name; a command that ends with its work may use a pool.
_STARTERS = frozenset({"Thread", "Timer", "ThreadPoolExecutor", "start_new_thread"})
_COMMANDS = re.compile(r"(cli|demo|tools)/|strategies/\w+/doctor\.py")
# Its call is a supervisor's.
_SUPERVISED = {"strategies/katalyst/outside.py": "supervisor.call"}


def _starts() -> Iterator[tuple[str, ast.Call]]:
    for path in MODULES:
        name = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(tree(path)):
            called = node.func if isinstance(node, ast.Call) else None
            word = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if word in _STARTERS and isinstance(node, ast.Call) and not _COMMANDS.match(name):
                yield name, node


def test_threads_are_started_by_one_module() -> None:
    found = list(_starts())
    report(
        (
            f"{name}:{node.lineno}"
            for name, node in found
            if name != THE_DOOR and _SUPERVISED.get(name, "\n") not in ast.unparse(node)
        ),
        f"start it by Supervisor or Worker of {THE_DOOR}: an unexpected error would end it unseen",
    )
    assert {name for name, _ in found} == {THE_DOOR, *_SUPERVISED}
