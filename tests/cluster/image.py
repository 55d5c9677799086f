"""An OCI archive with one layer of static programs, as `ctr images import` takes it."""

from __future__ import annotations

import gzip
import hashlib
import io
import platform
import tarfile
from collections.abc import Mapping
from pathlib import Path

import msgspec

_DIRECTORIES = ("bin", "dev", "etc", "proc", "sys", "tmp")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_OCI = "application/vnd.oci.image"


def write_image(out: Path, name: str, files: Mapping[str, Path], links: Mapping[str, str]) -> None:
    """Write an image whose containers do nothing until they are given a command.

    Args:
        out: the archive.
        name: what pods call it.
        files: path in the image → executable.
        links: name in /bin → what it links to.
    """
    layer = _layer(files, links)
    packed = gzip.compress(layer, mtime=0)
    config = {
        "architecture": _ARCHITECTURES[platform.machine()],
        "os": "linux",
        "config": {"Entrypoint": ["/bin/sleep", "2147483647"], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }
    config_bytes = msgspec.json.encode(config)
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{_OCI}.manifest.v1+json",
        "config": _descriptor("config.v1+json", config_bytes),
        "layers": [_descriptor("layer.v1.tar+gzip", packed)],
    }
    manifest_bytes = msgspec.json.encode(manifest)
    entry = _descriptor("manifest.v1+json", manifest_bytes)
    tag = name.rpartition(":")[2]
    entry["annotations"] = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": tag}
    index = {"schemaVersion": 2, "mediaType": f"{_OCI}.index.v1+json", "manifests": [entry]}
    with tarfile.open(out, "w") as archive:
        _add(archive, "oci-layout", msgspec.json.encode({"imageLayoutVersion": "1.0.0"}))
        _add(archive, "index.json", msgspec.json.encode(index))
        for blob in (config_bytes, manifest_bytes, packed):
            _add(archive, f"blobs/sha256/{_digest(blob).removeprefix('sha256:')}", blob)


def _layer(files: Mapping[str, Path], links: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for directory in _DIRECTORIES:
            info = tarfile.TarInfo(directory)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            layer.addfile(info)
        for path, source in files.items():
            _add(layer, path, source.read_bytes(), 0o755)
        for name, target in links.items():
            info = tarfile.TarInfo(f"bin/{name}")
            info.type, info.linkname = tarfile.SYMTYPE, target
            layer.addfile(info)
        _add(layer, "etc/passwd", b"root:x:0:0:root:/:/bin/sh\n")
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, path: str, content: bytes, mode: int = 0o644) -> None:
    info = tarfile.TarInfo(path)
    info.size, info.mode = len(content), mode
    archive.addfile(info, io.BytesIO(content))


def _descriptor(kind: str, content: bytes) -> dict[str, object]:
    return {"mediaType": f"{_OCI}.{kind}", "digest": _digest(content), "size": len(content)}


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()
