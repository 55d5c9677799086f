"""The releases of Kubernetes that tests run on: the newest patch of each of the newest three minors.

`build/MINOR` pins what each is compiled from; `python -m tests.cluster.pin VERSION` writes it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

BUILD = Path(__file__).parent / "build"
VARIABLE = "KOORDEBPF_KUBERNETES"


class UnknownMinor(ValueError):
    """The environment asks for a minor that is not in the list."""


class Release(msgspec.Struct, frozen=True):
    """One release of Kubernetes."""

    version: str

    @property
    def minor(self) -> str:
        """Return the minor, as 1.36."""
        return self.version.rpartition(".")[0]

    @property
    def go_mod(self) -> Path:
        """Return the file that pins its modules; their sums are beside it."""
        return BUILD / self.minor / "go.mod"

    @property
    def go(self) -> tuple[int, int]:
        """Return the oldest Go that compiles it."""
        found = re.search(r"^go (\d+)\.(\d+)", self.go_mod.read_text(), re.MULTILINE)
        assert found is not None, self.go_mod
        return int(found[1]), int(found[2])


RELEASES = {release.minor: release for release in map(Release, ("1.35.4", "1.36.3", "1.37.2"))}
DEFAULT = next(iter(RELEASES))  # the oldest of them


def chosen(environment: Mapping[str, str] = os.environ) -> Release:
    """Return the release that tests use: the default one, or the one of the minor in KOORDEBPF_KUBERNETES.

    Raises:  UnknownMinor: it is not in the list.
    """
    minor = environment.get(VARIABLE) or DEFAULT
    if minor not in RELEASES:
        raise UnknownMinor(f"{VARIABLE}={minor}: there is no such minor here; there are: {', '.join(RELEASES)}")
    return RELEASES[minor]
