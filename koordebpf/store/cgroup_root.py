"""The kubelet's cgroup root that was learned, kept where the next agent finds it: it is learned once."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from koordebpf.attribution.kubelet_root import KubeletRoot
from koordebpf.kernel.io.regular_file import KeptFile

log = logging.getLogger("koordebpf")

_MOST: Final = 4096  # Why: PATH_MAX, include/uapi/linux/limits.h


class KeptRoot:
    """Owns the file at `path`, on a tmpfs; None: nothing is kept.

    What it holds is taken again only if pods of the list are there: after a change of the kubelet's setting the new one
    is learned by the agent's next start.

    Args:
        own_pod_uid: of the pod that this agent runs in; None: of none.
    """

    def __init__(self, kubelet: KubeletRoot, path: Path | None, own_pod_uid: str | None) -> None:
        self._kubelet = kubelet
        self._file = KeptFile(path, "the next agent learns it again")
        self._has_looked = kubelet.is_given
        kubelet.own_pod_uid = own_pod_uid
        kubelet.expected = _read(self._file)

    def refresh(self) -> None:
        """Log the root once it is known, and keep it."""
        if self._has_looked or not self._kubelet.is_known:
            return
        self._has_looked = True
        root = self._kubelet.path or "/"
        there = ", ".join(each.path for each in self._kubelet.counting[:2])
        log.info("the kubelet's cgroup root is %s: this node's pods are below %s", root, there)
        if (before := self._kubelet.expected) not in (None, root):
            log.warning("it was %s for the agent before; no pod of this node is there now", before)
        if before != root:
            self._file.replace(root.encode())


def _read(file: KeptFile) -> str | None:
    try:
        root = (file.read() or b"").decode()
    except UnicodeDecodeError:
        return None
    return root if 0 < len(root) < _MOST else None
