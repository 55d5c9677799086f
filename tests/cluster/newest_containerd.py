"""containerd 2, compiled once from the module that containerd/go.mod pins. Nothing is installed.

`python -m tests.cluster.newest_containerd` compiles it and says where it is. runc, which it runs, is Debian's.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.cluster.binaries import CannotHave, Say, cache_folder, find_go, go_build, say_line
from tests.cluster.go_programs import GO_FLAGS, kept_program

_BUILD = Path(__file__).with_name("containerd")
_MODULE = "github.com/containerd/containerd/v2"
_PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")
# Snapshotters that would need a C library or are not used here.
_TAGS = "-tags=no_btrfs,no_devmapper,no_zfs"


def newest_containerd(say: Say) -> Path:
    """Return the folder of its programs out of the cache, compiled first where they are not there.

    Raises:  CannotHave: it does not compile, or its modules cannot be downloaded.
    Cost:    2 minutes with two CPUs.
    """

    def build(out: Path) -> None:
        say("compiling containerd 2, once: it takes about 2 minutes")
        out.mkdir(exist_ok=True)
        packages = [f"{_MODULE}/cmd/{name}" for name in _PROGRAMS]
        go_build(find_go(cache_folder(), say), [*GO_FLAGS, _TAGS, "-o", f"{out}/", *packages], _BUILD, say)

    inputs = [(_BUILD / name).read_bytes() for name in ("go.mod", "go.sum")]
    return kept_program("containerd-2", [*inputs, _TAGS.encode()], build, say)


if __name__ == "__main__":
    try:
        say_line(str(newest_containerd(say_line)))
    except CannotHave as error:
        sys.exit(f"cluster: {error}")
