"""Lists with an older resourceVersion than the cache: from a lagging server or a restored etcd. Pure."""

from __future__ import annotations

from typing import Final

from koordebpf.kube.cache.store import is_older

_MIN_LISTS: Final = 3  # until they are the truth


class OlderLists:
    """Those that came one after another, none older than the one before, and nothing newer between them."""

    def __init__(self, restored_s: float) -> None:
        self._restored_s = restored_s
        self._since_s = 0.0
        self._version = ""
        self.count = 0

    def forget(self) -> None:
        """Take it that a list came which is not older."""
        self.count = 0

    def are_true(self, version: str, now_s: float) -> bool:
        """Count one more; tell whether they have lasted for so long that they are what the cluster has now."""
        if not self.count or is_older(version, self._version):
            self.count, self._since_s = 0, now_s
        self.count += 1
        self._version = version
        return self.count >= _MIN_LISTS and now_s - self._since_s >= self._restored_s
