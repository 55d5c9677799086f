"""The image of deploy/image, built from its Dockerfile without a container engine, in a cache.

The Dockerfile is followed by buildah of Debian, with chroot as its isolation. No registry is asked: the Debian that the
image begins with is made from Debian's packages, as debian:bookworm-slim is. `python -m tests.cluster.agent_image`
brings what is missing and says where it is.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.cluster.binaries import CannotHave, Say, alone, cache_folder, digest_of, run, say_line, unpacked
from tests.cluster.overlay import can_overlay

ROOT = Path(__file__).parents[2]
IMAGE = "docker.io/library/koordebpf:0.1.0"  # how containerd calls what the manifests call koordebpf:0.1.0
_DOCKERFILE = ROOT / "deploy/image/Dockerfile"
_IGNORE = ROOT / "deploy/image/Dockerfile.dockerignore"
_BASE = "localhost/debian:bookworm-slim"
_DEBS = ("buildah", "libgpgme11", "libassuan0", "libsubid4", "libdevmapper1.02.1", "mmdebstrap")
_MERGED_USR = "/usr/share/mmdebstrap/hooks/merged-usr"
# As the official image is made: what is required, merged /usr, and no documentation.
_SLIM = (
    "--variant=minbase",
    f"--hook-dir={_MERGED_USR}",
    "--include=usr-is-merged",
    "--dpkgopt=force-unsafe-io",
    '--aptopt=Acquire::Languages "none"',
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-include=/usr/share/doc/*/copyright",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
)
# 2023-06-10, when bookworm came out. Why: the base is the same whenever it is made of the same packages.
_BASE_EPOCH = 1686355200
_TRUST = Path("/etc/ssl/certs/ca-certificates.crt")
_PLAIN_LAYER = "application/vnd.oci.image.layer.v1.tar"
_STORAGE_MAX_KIB = 4 << 20  # each change of the sources leaves 140 MB of layers that nothing asks for again


def obtain_image(say: Say, target: str = "") -> Path:
    """Return the OCI archive of the image, or of another target, made first where the cache has none of these sources.

    Needs:   root; Debian's archive and PyPI.
    Cost:    the first time 3 min, 80 s of them CPU time, and 2 GB; after a change of koordebpf/ or bpf/ half a minute.
    Raises:  CannotHave: and why.
    """
    home = cache_folder().with_name("image")
    home.mkdir(parents=True, exist_ok=True)
    out = home / f"{target or 'agent'}-{_sources_digest()}.tar"
    with alone(home / "lock", say):
        if not out.exists():
            _Builder(home, say).build(out, target)
            for old in set(home.glob(f"{target or 'agent'}-*.tar")) - {out}:
                old.unlink()
    return out


def build_image(out: Path, say: Say, *, epoch: int, revision: str) -> None:
    """Write the OCI archive of the image, made from its first step on; the same sources and epoch give the same bytes.

    Args:
        out: where to.
        say: gets a sentence about each step.
        epoch: all times in it, in seconds.
        revision: the commit that it is of.

    Needs:   as `obtain_image`.
    Cost:    3 min.
    """
    home = cache_folder().with_name("image")
    home.mkdir(parents=True, exist_ok=True)
    arguments = {"SOURCE_DATE_EPOCH": str(epoch), "REVISION": revision}
    options = [
        "--no-cache",
        f"--timestamp={epoch}",
        *(f"--build-arg={key}={value}" for key, value in arguments.items()),
    ]
    pushed = out.with_suffix(".pushed")
    with alone(home / "lock", say):
        _Builder(home, say).build(pushed, "", options)
    _pack_again(pushed, out, epoch)
    pushed.unlink()


# buildah writes the time of the push into the archive.
def _pack_again(pushed: Path, out: Path, epoch: int) -> None:
    with tarfile.open(pushed) as blobs, tarfile.open(out, "w", format=tarfile.USTAR_FORMAT) as again:
        for entry in sorted(blobs.getmembers(), key=lambda each: each.name):
            entry.mtime = epoch
            again.addfile(entry, blobs.extractfile(entry) if entry.isfile() else None)


class Unpacked(msgspec.Struct, frozen=True):
    """An image in a folder."""

    root: Path  # its file system
    config: dict[str, Any]  # what it says of itself: labels, user, entry point
    packed_bytes: int  # what a node downloads


def unpack(archive: Path, folder: Path) -> Unpacked:
    """Unpack an OCI archive of one image into a folder."""
    with tarfile.open(archive) as blobs:
        blobs.extractall(folder, filter="fully_trusted")
    (entry,) = json.loads((folder / "index.json").read_text())["manifests"]
    manifest = json.loads(_blob(folder, entry).read_text())
    root = folder / "root"
    root.mkdir()
    root.chmod(0o755)  # whatever the umask: the image's user begins there
    for layer in manifest["layers"]:
        run(["tar", "--extract", f"--file={_blob(folder, layer)}", f"--directory={root}", "--numeric-owner"])
    config = json.loads(_blob(folder, manifest["config"]).read_text())["config"]
    return Unpacked(root, config, sum(layer["size"] for layer in manifest["layers"]))


def uncompress_layers(archive: Path, out: Path) -> None:
    """Write the OCI archive of an image again, its layers not compressed: quicker to unpack on an emulated CPU."""
    with tempfile.TemporaryDirectory(dir=out.parent) as name:
        folder = Path(name)
        with tarfile.open(archive) as blobs:
            blobs.extractall(folder, filter="data")
        index = json.loads((folder / "index.json").read_text())
        (entry,) = index["manifests"]
        manifest = json.loads(_blob(folder, entry).read_text())
        for layer in manifest["layers"]:
            packed = _blob(folder, layer)
            layer |= _put(folder, gzip.decompress(packed.read_bytes())) | {"mediaType": _PLAIN_LAYER}
            packed.unlink()
        _blob(folder, entry).unlink()
        entry |= _put(folder, json.dumps(manifest).encode())
        (folder / "index.json").write_text(json.dumps(index))
        run(["tar", "--create", f"--file={out}", f"--directory={folder}", "oci-layout", "index.json", "blobs"])


def _put(folder: Path, data: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    (folder / "blobs/sha256" / digest).write_bytes(data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def _blob(folder: Path, descriptor: dict[str, Any]) -> Path:
    return folder / "blobs" / str(descriptor["digest"]).replace(":", "/")


def _sources_digest() -> str:
    listed = ["git", "ls-files", "-co", "--exclude-standard", "--", "koordebpf", "bpf", "deploy/image"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    paths = [ROOT / name for name in sorted([*names, "pyproject.toml", ".ci/hatch_build.py", "README.md", "LICENSE"])]
    files = [part for path in paths if path.exists() for part in (path.name.encode(), path.read_bytes())]
    return digest_of([*files, *(each.encode() for each in _SLIM)])


class _Builder:
    # Its programs see Debian's packages as if they were installed: an overlay over /usr, in a mount namespace.
    def __init__(self, home: Path, say: Say) -> None:
        self._home = home
        self._say = say
        self._tools = unpacked(home / "tools", _DEBS, say)
        if (libraries := self._tools / "lib").is_dir():
            shutil.copytree(libraries, self._tools / "usr/lib", symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(libraries)
        self._driver = "overlay" if can_overlay(home) else "vfs"
        self._policy = home / "policy.json"
        self._policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')

    def build(self, out: Path, target: str, options: Sequence[str] = ()) -> None:
        """Write the archive."""
        storage = self._home / "storage"
        if storage.exists() and int(subprocess.check_output(["du", "-sk", storage]).split()[0]) > _STORAGE_MAX_KIB:
            self._say("rebuilding the layers: those of older sources take more than 4 GiB")
            shutil.rmtree(storage)
        base = self._base()
        settings = self._home / "pip.conf"
        index = os.environ.get("PIP_INDEX_URL")
        settings.write_text("[global]\ncert = /etc/trust.crt\n" + (f"index-url = {index}\n" if index else ""))
        self._say(f"building {_DOCKERFILE.relative_to(ROOT)} {target}")
        name = f"localhost/koordebpf:{target or 'agent'}"
        mounts = [f"--volume={settings}:/etc/pip.conf:ro", f"--volume={_TRUST}:/etc/trust.crt:ro"]
        self._buildah(
            "build",
            "--layers",
            "--isolation=chroot",
            "--network=host",
            f"--build-arg=BASE={base}",
            *(mounts if _TRUST.exists() else ()),
            *([f"--target={target}"] if target else ()),
            f"--file={_DOCKERFILE}",
            f"--ignorefile={_IGNORE}",
            *options,
            f"--tag={name}",
            str(ROOT),
        )
        unfinished = out.with_suffix(".unfinished")
        self._buildah("push", name, f"oci-archive:{unfinished}:{IMAGE}")
        unfinished.rename(out)

    # debian:bookworm-slim, as an image that buildah knows.
    def _base(self) -> str:
        folder = self._home / f"base-{digest_of([str(_BASE_EPOCH).encode(), *(each.encode() for each in _SLIM)])}"
        archive = folder / "root.tar"
        if not archive.exists():
            for old in self._home.glob("base-*"):
                shutil.rmtree(old)
            folder.mkdir()
            self._say("making a slim Debian")
            unfinished = folder / "unfinished.tar"
            epoch = f"SOURCE_DATE_EPOCH={_BASE_EPOCH}"
            self._run("env", epoch, "mmdebstrap", "--quiet", "--mode=root", *_SLIM, "bookworm", str(unfinished))
            unfinished.rename(archive)
        (folder / "Dockerfile").write_text("FROM scratch\nADD root.tar /\n")
        self._buildah("build", "--layers", f"--timestamp={_BASE_EPOCH}", f"--tag={_BASE}", str(folder))
        return _BASE

    def _buildah(self, command: str, *arguments: str) -> None:
        storage = [f"--root={self._home}/storage", f"--runroot={self._home}/run", f"--storage-driver={self._driver}"]
        self._run("buildah", *storage, command, f"--signature-policy={self._policy}", *arguments)

    def _run(self, *command: str) -> None:
        overlay = 'mount -t overlay overlay -o "lowerdir=$0/usr:/usr" /usr && exec "$@"'
        run(["nice", "unshare", "--mount", "sh", "-c", overlay, str(self._tools), *command])


if __name__ == "__main__":
    if os.geteuid() != 0:
        sys.exit("image: needs root: it is built in mounts of its own")
    try:
        say_line(str(obtain_image(say_line, *sys.argv[1:2])))
    except CannotHave as error:
        sys.exit(f"image: {error}")
