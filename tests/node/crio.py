"""CRI-O, compiled once from the module that build/go.mod pins, and how it takes the place of a guest's containerd.

`python -m tests.node.crio` compiles it and says where it is. conmon and crun, which it runs, are of the image.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.cluster.binaries import IMAGE as LOAD
from tests.cluster.binaries import CannotHave, alone, cache_folder, digest_of, find_go, go_build, run, say_line, since
from tests.cluster.binaries import obtain as obtain_binaries
from tests.node.network import HOST_ADDRESS
from tests.node.served import served
from tests.vm.kernels import Say

if TYPE_CHECKING:
    from tests.node.guest import Guest

SOCKET = "/run/crio/crio.sock"
_BUILD = Path(__file__).with_name("build")
_MODULE = "github.com/cri-o/cri-o"
# All that would need a C library is left out.
_TAGS = "containers_image_openpgp,containers_image_ostree_stub,exclude_graphdriver_btrfs"
_GO_FLAGS = ("-mod=readonly", "-trimpath", f"-tags={_TAGS}", "-ldflags=-s -w")
_C_FLAGS = ("-std=c99", "-O2", "-static")
_PROGRAMS = ("crio", "pinns")
_REGISTRIES = "/etc/containers/registries.conf"
_BRING_S = 240


def obtain(say: Say) -> Path:
    """Return the folder of the programs out of the cache, compiled first where they are not there.

    Raises:  CannotHave: and why.
    Cost:    3 minutes.
    """
    inputs = [path.read_bytes() for path in sorted(_BUILD.iterdir())]
    home = cache_folder()
    home.mkdir(parents=True, exist_ok=True)
    folder = home / f"crio-{digest_of([*inputs, *(flag.encode() for flag in (*_GO_FLAGS, *_C_FLAGS))])}"
    with alone(home / "crio.lock", say):
        if folder.exists():
            return folder
        started_s = time.monotonic()
        unfinished = folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        go = find_go(home, say)
        say("compiling CRI-O, once: it takes about 3 minutes")
        go_build(go, [*_GO_FLAGS, "-o", str(unfinished / "crio"), f"{_MODULE}/cmd/crio"], _BUILD, say)
        # A program in C that makes namespaces which outlive it; the module has its sources.
        sources = sorted(str(path) for path in (_module(go) / "pinns/src").glob("*.c"))
        run(["clang", *_C_FLAGS, *sources, "-o", str(unfinished / "pinns")])
        unfinished.rename(folder)
        say(f"compiled in {since(started_s)}: {folder}")
    return folder


def _module(go: Path) -> Path:
    command = [go, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", _MODULE]
    done = subprocess.run(command, cwd=_BUILD, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotHave(f"go list ended with {done.returncode}: {done.stderr.strip()}")
    return Path(done.stdout.strip())


@contextlib.contextmanager
def in_place_of_containerd(guest: Guest, say: Say) -> Iterator[None]:
    """Stop containerd for good and start CRI-O, which can pull the load's image from here until the end."""
    programs = obtain(say)
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="koordebpf-registry-") as name:
        folder = Path(name)
        for program in _PROGRAMS:
            shutil.copy(programs / program, folder)
        write_registry(folder, obtain_binaries(say).image)
        with served(folder) as port:
            place = f"{HOST_ADDRESS}:{port}"
            guest.check("systemctl mask --now containerd")
            for program in _PROGRAMS:
                path = f"/usr/local/bin/{program}"
                guest.check(f"busybox wget -q -O {path} http://{place}/{program} && chmod 755 {path}", _BRING_S)
            prefix = LOAD.partition("/")[0]
            registry = f'[[registry]]\nprefix = "{prefix}"\nlocation = "{place}"\ninsecure = true\n'
            guest.write(_REGISTRIES, registry.encode())
            guest.check("systemctl start crio", _BRING_S)
            yield


def write_registry(folder: Path, archive: Path) -> None:
    """Write the load's image as a registry has it: files at the paths that its clients ask for."""
    repository, _, tag = LOAD.partition("/")[2].partition(":")
    with tarfile.open(archive) as packed:
        packed.extractall(folder / "archive", filter="data")
    (manifest,) = json.loads((folder / "archive/index.json").read_bytes())["manifests"]
    blobs, manifests = folder / "v2" / repository / "blobs", folder / "v2" / repository / "manifests"
    for made in (blobs, manifests):
        made.mkdir(parents=True)
    for blob in (folder / "archive/blobs/sha256").iterdir():
        shutil.copy(blob, blobs / f"sha256:{blob.name}")
    for reference in (tag, manifest["digest"]):
        shutil.copy(blobs / manifest["digest"], manifests / reference)


if __name__ == "__main__":
    try:
        say_line(str(obtain(say_line)))
    except CannotHave as error:
        sys.exit(f"node: {error}")
