"""What tests need of the machine that they run on, by module; each is a marker too, for `pytest -m root`.

A folder says what its modules need; one that needs something else says so: `pytestmark = pytest.mark.root`.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

NOTHING, ROOT, API, KUBELET, MACHINE, BROWSER = "nothing", "root", "api", "kubelet", "machine", "browser"
ALL = {
    NOTHING: "nothing of the machine",
    ROOT: "root and the live kernel",
    API: "root and a real API server",
    KUBELET: "root, the live kernel, a real API server and a real node",
    MACHINE: "a virtual machine",
    BROWSER: "a browser",
}
# These measure, or fill the machine: one runs at a time, beside all others.
LIVE = (ROOT, KUBELET, BROWSER)
PURE = ("unit", "strategies", "jobs", "trees", "golden", "properties", "scenarios")  # folders that need nothing
_OF_FOLDERS = {"host": ROOT, "cluster": API, "node": MACHINE, "vm": MACHINE, "browser": BROWSER}
_OWN = re.compile(rf"^pytestmark = .*\bmark\.({'|'.join(ALL)})\b", re.MULTILINE)
_TESTS = Path(__file__).parent


def of_folder(folder: str) -> str:
    """Return what the tests of a folder need, unless their module says otherwise."""
    return _OF_FOLDERS.get(folder, NOTHING)


@functools.cache  # pytest asks for each test
def of_module(path: Path) -> str:
    """Return what the tests of a module need."""
    own = _OWN.search(path.read_text())
    return own[1] if own else of_folder(path.relative_to(_TESTS).parts[0])
