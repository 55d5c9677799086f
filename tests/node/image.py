"""The guest's disk and initrd, out of Debian's packages, in a cache that is keyed by everything they are made of.

`python -m tests.node.image [trixie | bookworm] [--renew]` brings them and says where they are. It needs root, Debian's
archive and PyPI; whatever boots from them needs neither. The node is what vagrant/provision/node.sh makes of it, as it
does of a machine of vagrant/; `files/` adds what only a guest needs.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

import click
import msgspec

from tests.cluster.binaries import IMAGE, Binaries, CannotHave, alone, digest_of, run, say_line
from tests.cluster.binaries import obtain as obtain_binaries
from tests.cluster.releases import RELEASES
from tests.node.initrd import write_initrd
from tests.vm import kernels
from tests.vm.kernels import Kernel, Say

_ROOT = Path(__file__).parents[2]
FILES = Path(__file__).with_name("files")
_PROVISION = _ROOT / "vagrant" / "provision"
_SCRIPTS = ("node.sh", "files.sh", "node-packages.txt")
_PACKAGES = (
    *(_PROVISION / "node-packages.txt").read_text().split(),
    *("systemd", "systemd-sysv", "systemd-oomd", "udev", "dbus", "procps", "mount", "util-linux"),
    *("e2fsprogs", "zstd", "python3", "libbpf1", "busybox-static", "ca-certificates"),
    *("conmon", "crun"),  # crio.py
)
# Drivers of devices that no such guest has.
_NO_MODULES = (
    *("sound", "drivers/gpu", "drivers/media", "drivers/infiniband", "drivers/iio", "drivers/hwmon", "drivers/hid"),
    *("drivers/usb", "drivers/scsi", "drivers/ata", "drivers/mmc", "drivers/mtd", "drivers/staging"),
    *("drivers/platform", "drivers/input", "drivers/bluetooth", "drivers/isdn", "drivers/nfc", "drivers/comedi"),
    *("drivers/thunderbolt", "drivers/firewire", "drivers/net/ethernet", "drivers/net/wireless", "drivers/net/usb"),
    *("drivers/net/can", "drivers/net/wwan"),
)
_NO_FILES = ("usr/share/man", "usr/share/locale", "usr/share/doc", "usr/share/info")
# Of Debian's units those that take seconds of an emulated CPU, and serve people or hardware.
_MASKED = (
    *("getty.target", "getty@tty1.service", "serial-getty@ttyS0.service", "systemd-random-seed.service"),
    *("systemd-binfmt.service", "proc-sys-fs-binfmt_misc.automount", "systemd-hostnamed.socket"),
    *("systemd-journal-flush.service", "systemd-pstore.service", "modprobe@drm.service"),
    *("modprobe@efi_pstore.service", "e2scrub_reap.service", "e2scrub_all.timer", "fstrim.timer"),
    *("dpkg-db-backup.timer", "systemd-tmpfiles-clean.timer", "systemd-update-utmp.service"),
    "systemd-network-generator.service",
)
_ENABLED = ("containerd", "kubelet", "node-network", "node-images", "node-commands")
_DISK_MIB = 4096  # of a file with holes
_DISK_NAME = "node.img"
SOURCE = "opt/koordebpf/source"  # where agents are in the guest


class Suite(msgspec.Struct, frozen=True):
    """One release of Debian."""

    name: str
    kernel: str  # its series in tests/vm/kernels.py
    python: str
    containerd: str
    has_nri: bool  # since containerd 1.7
    has_user_namespaces: bool  # for pods: since Linux 6.3 and crun 1.9


CHOSEN = "KOORDEBPF_NODE_SUITE"  # in the environment: the suite that tests run on
DEFAULT = "trixie"
SUITES = {
    suite.name: suite
    for suite in (
        Suite("trixie", "6.12", "3.13", "1.7", has_nri=True, has_user_namespaces=True),
        Suite("bookworm", "6.1", "3.11", "1.6", has_nri=False, has_user_namespaces=False),
    )
}


class Image(msgspec.Struct, frozen=True):
    """What a guest boots from, in the cache."""

    suite: Suite
    folder: Path  # named by what it is made of; saved states are kept in there too
    kernel: Kernel

    @property
    def packed_disk(self) -> Path:
        """Return the disk, compressed."""
        return self.folder / f"{_DISK_NAME}.zst"

    @property
    def initrd(self) -> Path:
        """Return what the kernel unpacks before there is a disk."""
        return self.folder / "initrd"

    def unpack(self, into: Path) -> Path:
        """Write the disk, with holes; return where it is."""
        unpack(self.packed_disk, into / _DISK_NAME)
        return into / _DISK_NAME


def cache_folder() -> Path:
    """Return where images outlive a checkout."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "koordebpf" / "node"


def obtain(suite: Suite, say: Say, *, renew: bool = False) -> Image:
    """Return an image out of the cache, made first where it is not there, or where `renew` asks for newer packages.

    Raises:  CannotHave: and why.
    Cost:    about a minute and a half, beside the compilation of Kubernetes.
    """
    binaries = obtain_binaries(say)
    try:
        kernel = kernels.obtain(kernels.SERIES[suite.kernel], say, renew=renew)
    except kernels.CannotHave as error:
        raise CannotHave(str(error)) from error
    home = cache_folder()
    home.mkdir(parents=True, exist_ok=True)
    minor = binaries.release.minor
    image = Image(suite, home / f"{suite.name}-{minor}-{_key(suite, kernel, binaries)}", kernel)
    with alone(home / f"{suite.name}.lock", say):
        if renew:
            shutil.rmtree(image.folder, ignore_errors=True)
        if not image.initrd.exists():
            _drop_older(home, suite, minor)
            _build(image, binaries, say)
    return image


# An older one would only take room. One of another minor that is in use stays: each takes 380 MB.
def _drop_older(home: Path, suite: Suite, minor: str) -> None:
    others = tuple(f"{suite.name}-{each}-" for each in RELEASES if each != minor)
    for folder in home.glob(f"{suite.name}-*"):
        if not folder.name.startswith(others):
            shutil.rmtree(folder)


def _key(suite: Suite, kernel: Kernel, binaries: Binaries) -> str:
    files = [*sorted(path for path in FILES.rglob("*") if path.is_file()), *(_PROVISION / name for name in _SCRIPTS)]
    recipe = [Path(__file__), Path(__file__).with_name("initrd.py"), *files]
    facts = [suite.name, kernel.release, binaries.kubernetes.parent.name, binaries.image.name, *_requirements()]
    return digest_of([*(path.read_bytes() for path in recipe), *(fact.encode() for fact in facts)])


def _requirements() -> list[str]:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"]["cri"]]


def _build(image: Image, binaries: Binaries, say: Say) -> None:
    started_s = time.monotonic()
    unfinished = image.folder.with_name(f"{image.folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="koordebpf-node-image-") as name:
        root, disk = Path(name, "root"), Path(name, _DISK_NAME)
        say(f"{image.suite.name}: a root of {len(_PACKAGES)} packages and what they need")
        _install(image.suite, root, Path(name, "sources.list"))
        say(f"{image.suite.name}: Python packages for {image.suite.python}")
        _add_python_packages(image.suite, root)
        _add_kernel_modules(image.kernel, root)
        _add_kubernetes(binaries, root)
        _provision(root)
        _configure(image.suite, root)
        # The guest has to be what the script makes of a node, and nothing else.
        if changed := _provision(root):
            raise CannotHave(f"a second run of node.sh is not to change anything:\n{changed}")
        write_initrd(image.kernel, root, unfinished / "initrd")
        say(f"{image.suite.name}: disk")
        with disk.open("wb") as file:
            file.truncate(_DISK_MIB << 20)
        options = "lazy_itable_init=1,lazy_journal_init=1"
        run(["mke2fs", "-q", "-t", "ext4", "-E", options, "-m", "0", "-L", "root", "-d", str(root), str(disk)])
        pack(disk, unfinished / f"{_DISK_NAME}.zst")
    unfinished.rename(image.folder)
    megabytes = sum(path.stat().st_size for path in image.folder.iterdir()) / 1e6
    say(f"{image.suite.name}: {megabytes:.0f} MB in {time.monotonic() - started_s:.0f} s: {image.folder}")


def pack(path: Path, packed: Path) -> None:
    """Compress a file."""
    run(["zstd", "-q", "-f", "-T0", "-3", str(path), "-o", str(packed)])


def unpack(packed: Path, path: Path) -> None:
    """Write what `pack` has compressed; zeros become holes."""
    run(["zstd", "-q", "-d", "-f", "--sparse", str(packed), "-o", str(path)])


def _install(suite: Suite, root: Path, sources: Path) -> None:
    sources.write_text(kernels.sources_list((suite.name, f"{suite.name}-security")))
    run([
        "mmdebstrap", "--mode=root", "--variant=essential", "--format=directory", f"--include={','.join(_PACKAGES)}",
        "--aptopt=Acquire::Languages none", "--aptopt=APT::Install-Recommends false", "--dpkgopt=force-unsafe-io",
        *(f"--dpkgopt=path-exclude=/{folder}/*" for folder in _NO_FILES),
        suite.name, str(root), str(sources),
    ])  # fmt: skip


def _add_python_packages(suite: Suite, root: Path) -> None:
    site = root / "opt/koordebpf/site"
    run([
        sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(site),
        "--python-version", suite.python, "--implementation", "cp", "--only-binary=:all:",
        "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64", *_requirements(),
    ])  # fmt: skip
    run(["chroot", str(root), "python3", "-m", "compileall", "-q", "/opt/koordebpf/site"])
    # Each test brings the package again; what has not changed by then is compiled already.
    without = shutil.ignore_patterns("__pycache__")
    shutil.copytree(_ROOT / "koordebpf", root / SOURCE / "koordebpf", ignore=without)
    by_hash = ["compileall", "-q", "--invalidation-mode", "checked-hash", f"/{SOURCE}"]
    run(["chroot", str(root), "python3", "-m", *by_hash])


def _add_kernel_modules(kernel: Kernel, root: Path) -> None:
    modules = root / "usr/lib/modules" / kernel.release
    shutil.copytree(kernel.root / "lib/modules" / kernel.release, modules, symlinks=True)
    for name in _NO_MODULES:
        shutil.rmtree(modules / "kernel" / name, ignore_errors=True)
    for name in ("build", "source"):
        (modules / name).unlink(missing_ok=True)
    run(["depmod", "-b", str(root), kernel.release])


def _add_kubernetes(binaries: Binaries, root: Path) -> None:
    shutil.copy(binaries.kubernetes, root / "usr/local/bin/kubernetes")
    images = root / "var/lib/koordebpf-node/images"
    images.mkdir(parents=True)
    shutil.copy(binaries.image, images / "load.tar")


# All packages are there: it installs nothing, for which a chroot would need a network.
def _provision(root: Path) -> str:
    folder = "usr/local/lib/koordebpf-node/provision"
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name in _SCRIPTS:
        shutil.copy(_PROVISION / name, root / folder)
    command = ["chroot", str(root), f"/{folder}/node.sh"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotHave(f"node.sh ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def _configure(suite: Suite, root: Path) -> None:
    assert f" {IMAGE} " in (FILES / "usr/local/sbin/node-images").read_text(), "the sandbox's image is the load's"
    shutil.copytree(FILES, root, dirs_exist_ok=True)
    for path in root.joinpath("usr/local/sbin").iterdir():
        path.chmod(0o755)
    etc = root / "etc"
    (etc / "hostname").write_text(f"{suite.name}\n")
    (etc / "hosts").write_text(f"127.0.0.1 localhost\n10.0.2.15 {suite.name}\n")
    # With a line of / systemd waits for udev to name the disk; the initrd mounts it for writing.
    (etc / "fstab").write_text("")
    (etc / "resolv.conf").unlink(missing_ok=True)
    (etc / "resolv.conf").write_text("")
    # Without them it is a first boot, at which catalogues, caches and users are made.
    (etc / "machine-id").write_text("1" * 32 + "\n")
    for folder in ("etc", "var"):
        (root / folder / ".updated").touch()
    units = etc / "systemd/system"
    (units / "default.target").unlink(missing_ok=True)
    (units / "default.target").symlink_to("/usr/lib/systemd/system/multi-user.target")
    for name in _MASKED:
        (units / name).unlink(missing_ok=True)
        (units / name).symlink_to("/dev/null")
    run(["systemctl", f"--root={root}", "enable", *_ENABLED])
    run(["systemctl", f"--root={root}", "disable", "systemd-oomd"])  # a test starts it


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("suite", type=click.Choice(list(SUITES)), envvar=CHOSEN, default=DEFAULT)
@click.option("--renew", is_flag=True, help="Build it again, with the newest packages and kernel.")
def main(suite: str, renew: bool) -> None:
    """Bring the image of a release of Debian, and say where it is."""
    try:
        image = obtain(SUITES[suite], say_line, renew=renew)
    except CannotHave as error:
        sys.exit(f"node: {re.sub(r'^', '  ', str(error), flags=re.MULTILINE).strip()}")
    for path in (image.packed_disk, image.initrd, image.kernel.image):
        say_line(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
