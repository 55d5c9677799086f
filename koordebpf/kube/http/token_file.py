"""The token of a ServiceAccount, which is in a file."""

from __future__ import annotations

from pathlib import Path

from koordebpf.errors import KubeError


class TokenFile:
    """Reads it again once its stat changes: kubelet rotates projected tokens by swapping a symlink."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mark: tuple[int, int, int] | None = None
        self._header: dict[str, str] = {}

    def header(self) -> dict[str, str]:
        """Return the header that shows the token.

        Raises:  KubeError: it cannot be read.
        """
        try:
            seen = self._path.stat()
            mark = (seen.st_mtime_ns, seen.st_size, seen.st_ino)
            if mark != self._mark:
                self._header = {"Authorization": f"Bearer {self._path.read_text('ascii').strip()}"}
                self._mark = mark
        except (OSError, UnicodeError) as e:
            raise KubeError(f"{self._path}: the token cannot be read: {e}") from e
        return self._header
