"""A few tests on each of Kubernetes' newest three minors: `make test-minors`, or `make test-minors MINORS="1.36 1.37"`.

Each is compiled and gets a node's image where the cache has none. Then its API server runs tests of `cluster/` that
need no node, and its kubelet, in a guest, tests of `node/`. At the end there is a row for each.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from tests import lacking, run
from tests.cluster.releases import RELEASES, VARIABLE, Release
from tests.counted import Counted

_ROOT = Path(__file__).resolve().parents[1]
# Folder → pytest's expression of the tests. What the API server takes, allows and refuses; then that a node joins, is
# reached and runs pods, that the agent evicts the hog alone by the API, and that it suppresses in slices of systemd.
TESTS = {
    "cluster": "test_release or test_manifests or (not slow and (test_source or test_marked_nodes or test_own_node_only"
    " or test_own_node_rights or test_namespace_labels or test_nodeslo_controller))",
    "node": "test_restore or test_reachable or (test_network and (logs or command or kubelet))"
    " or (test_evict and api) or (test_suppress and undoes and cfsQuota)",
}
_PROGRAMS = ("cluster.binaries", "deploy.programs", "node.image")


class Row(msgspec.Struct):
    """What came of one minor; `why` says what could not be built."""

    release: Release
    counted: Counted
    built_s: float
    tested_s: float = 0.0
    why: str = ""

    @property
    def is_well(self) -> bool:
        """Tell whether it was built, and every test has passed."""
        return not self.why and self.counted.passed > 0 and self.counted.failed == 0

    def text(self) -> str:
        """Return the row."""
        if self.why:
            return f"{self.release.version:<8} cannot be built, after {self.built_s:.0f} s: {self.why}"
        counted = self.counted
        counts = f"{counted.passed} passed, {counted.failed} failed, {counted.skipped} skipped"
        return f"{self.release.version:<8} {counts} · built in {self.built_s:.0f} s, tested in {self.tested_s:.0f} s"


def build() -> str:
    """Bring what the chosen minor's tests start; return why one is not available, or nothing."""
    for name in _PROGRAMS:
        command = [sys.executable, "-m", f"tests.{name}"]
        done = subprocess.run(command, cwd=_ROOT, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            return done.stderr.strip() or f"tests.{name} ended with {done.returncode}"
    return ""


def tried(release: Release) -> Row:
    """Build one minor and run its tests."""
    os.environ[VARIABLE] = release.minor
    started_s = time.monotonic()
    why = build()
    row = Row(release, Counted(), time.monotonic() - started_s, why=why)
    for folder, expression in {} if why else TESTS.items():
        print(f"\n== {release.version}: {folder}", flush=True)
        counted = run.run_folder(folder, ["-k", expression], brings=False)
        if counted.passed + counted.failed == 0:
            counted.add(Counted(failed=1, names=[f"{folder}: no test ran"]))
        row.counted.add(counted)
    run.judge_second_tries(row.counted)
    row.tested_s = time.monotonic() - started_s - row.built_s
    return row


def main(minors: Sequence[str]) -> int:
    """Test the minors that are named, or each; print a row for each; return 1 where one is not well."""
    if unknown := sorted(set(minors) - set(RELEASES)):
        print(f"no minor {', '.join(unknown)} here; there are: {', '.join(RELEASES)}", file=sys.stderr)
        return 2
    if lacks := lacking.what_node_lacks():
        print(f"test-minors: {lacks}", file=sys.stderr)
        return 3
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    run.REPORTS.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("KOORDEBPF_REQUIRE", ",".join(TESTS))
    rows = [tried(RELEASES[minor]) for minor in minors or RELEASES]
    print()
    for row in rows:
        print(*(f"failed: {row.release.version}: {name}\n" for name in row.counted.names), sep="", end="")
        again = row.counted.unsteady
        print(*(f"passed when tried again: {row.release.version}: {name}\n" for name in again), sep="", end="")
    print(*(row.text() for row in rows), sep="\n")
    return int(not all(row.is_well for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
