"""Debian's kernels, kept unpacked in a cache: downloaded once, with an apt state that is not the machine's own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tests.cluster.binaries import alone

Say = Callable[[str], None]
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class CannotHave(RuntimeError):
    """A kernel, a package or a machine that the matrix needs is not available."""


class Series(msgspec.Struct, frozen=True):
    """A series of kernels and the Debian suites that have its newest release."""

    name: str
    suites: tuple[str, ...]
    metapackage: str = "linux-image-amd64"


# Newest last. What Debian calls bullseye has left the main archive's mirrors, its security updates have not.
SERIES = {
    series.name: series
    for series in (
        Series("5.10", ("bullseye-security",)),
        Series("6.1", ("bookworm", "bookworm-security")),
        Series("6.12", ("trixie", "trixie-security")),
        Series("7", ("sid",)),
    )
}


class Kernel(msgspec.Struct, frozen=True):
    """One kernel, unpacked."""

    series: str
    release: str
    root: Path  # holds boot/ and lib/modules/

    @property
    def image(self) -> Path:
        """Return the compressed kernel that QEMU boots."""
        return self.root / "boot" / f"vmlinuz-{self.release}"

    @property
    def apt(self) -> Path:
        """Return the apt state that it was downloaded with."""
        return self.root / "apt"

    @property
    def headers(self) -> Path:
        """Return where its headers are, if `obtain` was asked for them."""
        return self.root / "headers" / "usr/src" / f"linux-headers-{self.release}"


def cache_folder() -> Path:
    """Return where kernels outlive a checkout."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "koordebpf" / "kernels"


def lock_of(series: Series) -> Path:
    """Return the lock of a series' kernel, and of its apt state beside it."""
    return cache_folder() / f"{series.name}.lock"


def obtain(series: Series, say: Say, *, with_headers: bool = False, renew: bool = False) -> Kernel:
    """Return a kernel of the series out of the cache, downloaded if it is not there.

    Args:
        series: which.
        say: called with each step.
        with_headers: bcc compiles against them.
        renew: ask the archive for its newest release, though the cache has one.
    Raises:  CannotHave: and why.
    """
    home = cache_folder() / series.name
    home.parent.mkdir(parents=True, exist_ok=True)
    with alone(lock_of(series), say):
        if renew and home.exists():
            shutil.rmtree(home)
        stamp = home / "release"
        if stamp.exists():
            kernel = Kernel(series.name, stamp.read_text().strip(), home)
            say(f"{series.name}: {kernel.release}, from the cache")
        else:
            kernel = _download_kernel(series, home, say)
        if with_headers and not kernel.headers.exists():
            _download_headers(series, kernel, say)
    return kernel


def _download_kernel(series: Series, home: Path, say: Say) -> Kernel:
    unfinished = home.with_name(f"{home.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    apt = Apt(series, unfinished / "apt", say)
    apt.update()
    package = apt.newest_image()
    release = package.removeprefix("linux-image-")
    # Since Debian 14 the image is a package without content, beside which these two are.
    parts = {f"linux-binary-{release}", f"linux-modules-{release}"} & set(apt.depends(package))
    apt.unpack([package, *sorted(parts)], unfinished)
    if not (unfinished / "lib").exists():
        # Since Debian 13 the modules are in /usr/lib, which is the same place on a Debian, but not here.
        (unfinished / "lib").symlink_to("usr/lib")
    if not (unfinished / "boot").exists():
        # Since Debian 14 the kernel is beside its modules.
        (unfinished / "boot").mkdir()
        image = unfinished / "boot" / f"vmlinuz-{release}"
        image.symlink_to(f"../lib/modules/{release}/vmlinuz")
    say(f"{series.name}: depmod {release}")
    run(["/sbin/depmod", "-b", str(unfinished), release], f"{series.name}: depmod")
    shutil.rmtree(unfinished / "usr/share", ignore_errors=True)
    (unfinished / "release").write_text(f"{release}\n")
    shutil.rmtree(home, ignore_errors=True)
    unfinished.rename(home)
    return Kernel(series.name, release, home)


def _download_headers(series: Series, kernel: Kernel, say: Say) -> None:
    unfinished = kernel.root / "headers.unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    apt = Apt(series, kernel.apt, say)
    apt.update()
    first = f"linux-headers-{kernel.release}"
    needed = [first, *(name for name in apt.depends(first) if name.startswith(("linux-headers-", "linux-kbuild-")))]
    apt.unpack(needed, unfinished)
    # Its Makefiles name the other packages' folders by their absolute path.
    for makefile in (unfinished / "usr/src" / first).glob("Makefile"):
        makefile.write_text(makefile.read_text().replace("/usr/src/", f"{kernel.root}/headers/usr/src/"))
    unfinished.rename(kernel.root / "headers")


class Apt:
    """apt-get and apt-cache with sources, lists, cache and status of their own: the machine's stay as they are."""

    def __init__(self, series: Series, folder: Path, say: Say) -> None:
        self._series, self._folder, self._say = series, folder, say
        for name in ("lists/partial", "archives/partial"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / "status").touch()
        (folder / "sources.list").write_text(sources_list(series.suites))
        self._options = [
            f"-oDir::Etc::sourcelist={folder}/sources.list",
            "-oDir::Etc::sourceparts=-",
            "-oDir::Etc::preferencesparts=-",
            f"-oDir::State={folder}",
            f"-oDir::State::lists={folder}/lists",
            f"-oDir::State::status={folder}/status",
            f"-oDir::Cache={folder}",
            "-oAcquire::Languages=none",
            "-oAcquire::Retries=3",
            # The Release file of an old suite is not renewed.
            "-oAcquire::Check-Valid-Until=false",
            # Root downloads into the cache itself, in which the user _apt may see nothing.
            "-oAPT::Sandbox::User=root",
        ]

    def update(self) -> None:
        """Download the package lists, if they are not here."""
        if any(self._folder.glob("lists/*_Packages*")):
            return
        self._say(f"{self._series.name}: package lists of {', '.join(self._series.suites)}")
        self._call("apt-get", "update", "-qq")

    def newest_image(self) -> str:
        """Return the package of the newest kernel."""
        images = self.depends(self._series.metapackage)
        found = [name for name in images if re.match(rf"linux-image-{re.escape(self._series.name)}[.\d]", name)]
        if not found:
            raise CannotHave(
                f"{self._series.name}: {self._series.metapackage} depends on {images}, none of that series"
            )
        return found[0]

    def depends(self, package: str) -> list[str]:
        """Return the names of the packages that a package needs."""
        return [part.split()[0] for part in self._field(package, "Depends").split(", ")]

    def version(self, package: str) -> str:
        """Return the newest version of a package."""
        return self._field(package, "Version")

    def _field(self, package: str, name: str) -> str:
        shown = self._call("apt-cache", "show", "--no-all-versions", package)
        (value,) = re.findall(rf"^{name}: (.*)$", shown, re.MULTILINE)
        return str(value)

    def unpack(self, packages: Sequence[str], into: Path) -> None:
        """Download packages and unpack them into a folder."""
        into.mkdir(parents=True, exist_ok=True)
        self._say(f"{self._series.name}: downloading {' '.join(packages)}")
        debs = self._folder / "archives"
        self._call("apt-get", "download", "-qq", *packages, cwd=debs)
        for deb in sorted(debs.glob("*.deb")):
            self._say(f"{self._series.name}: unpacking {deb.name.split('_')[0]}")
            run(["dpkg-deb", "-x", str(deb), str(into)], f"{self._series.name}: {deb.name}")
            deb.unlink()

    def _call(self, tool: str, *arguments: str, cwd: Path | None = None) -> str:
        return run([tool, *self._options, *arguments], f"{self._series.name}: {tool} {arguments[0]}", cwd)


def sources_list(suites: Sequence[str]) -> str:
    """Return a sources.list of Debian's suites, from where this machine's own sources have theirs.

    Raises:  CannotHave: they name no Debian archive.
    """
    main, security = _debian_archives()
    return "".join(
        f"deb [signed-by={_KEYRING}] {security if suite.endswith('-security') else main} {suite} main\n"
        for suite in suites
    )


def _debian_archives() -> tuple[str, str]:
    # Where this machine's own sources have Debian and its security updates from.
    targets = run(
        [
            "apt-get",
            "indextargets",
            "Created-By: Packages",
            "--format",
            "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)",
        ],
        "apt-get indextargets",
    )
    main = security = ""
    for line in targets.splitlines():
        uri, release, component, origin = line.split(" ", 3)
        # Before the first update the origin is not known.
        if component != "main" or origin not in {"Debian", "$(ORIGIN)", ""}:
            continue
        if release.endswith("-security"):
            security = security or uri
        elif "-" not in release:
            main = main or uri
    if not main or not security:
        raise CannotHave("apt's sources name no Debian archive with its security updates: kernels come from there")
    return main, security


def run(command: Sequence[str], what: str, cwd: Path | None = None) -> str:
    """Run a command and return what it printed.

    Raises:  CannotHave: `what` failed, and with which words.
    """
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise CannotHave(f"{what}: there is no {command[0]} here") from None
    if done.returncode:
        raise CannotHave(f"{what} ended with {done.returncode}:\n{done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
