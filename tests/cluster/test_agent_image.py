"""The image of deploy/image as its Dockerfile builds it: size, content, bill of materials, and that it runs."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
from importlib.metadata import distributions
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.cluster.agent_image import Unpacked, obtain_image, unpack
from tests.cluster.binaries import cache_folder, say_line, unpacked

pytestmark = [pytest.mark.kubelet, pytest.mark.slow]  # building the image takes minutes on a fresh machine

MAX_BYTES = 150_000_000
KOORDEBPF = "opt/koordebpf/bin/koordebpf"
# As which user the image runs: the controller's.
USER = 65532
LEFT_OUT = ("apt-get", "apt", "perl", "pip", "pip3", "clang", "gcc", "cc", "ld", "make")


@pytest.fixture(scope="module")
def archive() -> Path:
    if os.geteuid() != 0:
        pytest.skip("needs root: the image is built in mounts of its own")
    return obtain_image(say_line)


@pytest.fixture(scope="module")
def image(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    return unpack(archive, tmp_path_factory.mktemp("image"))


@pytest.fixture(scope="module")
def root(image: Unpacked) -> Path:
    """The image's root file system."""
    return image.root


def inside(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the root file system, read-only, as the image's user, with nothing mounted into it but /proc."""
    prepare = 'mount --bind -o ro "$0" "$0" && mount -t proc proc "$0/proc" && exec chroot --userspec=65532:65532 "$@"'
    isolated = ["unshare", "--mount", "--pid", "--fork", "--ipc", "--net", "sh", "-c", prepare, str(root), str(root)]
    return subprocess.run([*isolated, *command], capture_output=True, text=True, check=False, env={})


def test_it_is_small(image: Unpacked) -> None:
    files = [path for path in image.root.rglob("*") if path.is_file() and not path.is_symlink()]
    by_inode = {path.stat().st_ino: path.stat().st_size for path in files}
    print(f"{sum(by_inode.values()):,} bytes in {len(by_inode):,} files, {image.packed_bytes:,} bytes packed")
    assert sum(by_inode.values()) <= MAX_BYTES


def test_nothing_compiles_or_installs_in_it(root: Path) -> None:
    folders = [root / name for name in ("usr/bin", "usr/sbin", "usr/local/bin", "opt/koordebpf/bin")]
    assert [name for name in LEFT_OUT for folder in folders if (folder / name).exists()] == []
    assert (root / KOORDEBPF).exists()
    # Installed, not a link to a checkout.
    assert list((root / "opt/koordebpf").rglob("__editable__*")) == []
    assert list((root / "opt/koordebpf").glob("lib/*/site-packages/koordebpf/kernel/objects/*.bpf.o"))


def test_it_says_what_it_is(image: Unpacked) -> None:
    config = image.config
    labels = {name.removeprefix("org.opencontainers.image."): value for name, value in config["Labels"].items()}
    assert {"title", "description", "licenses", "version", "revision"} <= labels.keys()
    assert config["User"] == f"{USER}:{USER}"
    assert config["Entrypoint"] == [f"/{KOORDEBPF}"]


def test_its_bill_of_materials_names_every_package(root: Path) -> None:
    bom = json.loads((root / "usr/share/sbom/koordebpf.cdx.json").read_text())
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    listed = {unquote(each["purl"].partition("?")[0]) for each in bom["components"]}
    (packages,) = (root / "opt/koordebpf").glob("lib/*/site-packages")
    python = {
        f"pkg:pypi/{each.name.lower().replace('_', '-')}@{each.version}" for each in distributions(path=[str(packages)])
    }
    assert len(python) > 15
    shown = subprocess.run(
        ["dpkg-query", f"--admindir={root}/var/lib/dpkg", "--show", "--showformat=${db:Status-Status} ${Package}\n"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    debian = {name for status, name in map(str.split, shown.splitlines()) if status == "installed"}
    assert {"libbpf1", "python3.11-minimal"} <= debian
    assert {each for each in listed if each.startswith("pkg:pypi/")} == python
    assert {each.split("/")[2].partition("@")[0] for each in listed if each.startswith("pkg:deb/")} == debian


def test_every_library_finds_what_it_is_linked_to(root: Path) -> None:
    paths = [path for path in root.rglob("*.so*") if path.is_file() and not path.is_symlink()]
    names = [f"/{path.relative_to(root)}" for path in paths]
    assert any("msgspec" in name for name in names)
    done = inside(root, "/usr/bin/ldd", *names)
    lost = [line for line in done.stdout.splitlines() if "not found" in line]
    assert lost == []


def test_each_command_begins_there(root: Path) -> None:
    listed = inside(root, f"/{KOORDEBPF}", "--help").stdout.partition("Commands:\n")[2]
    commands = re.findall(r"^  ([a-z]+) ", listed, re.MULTILINE)
    assert {"run", "controller", "doctor", "top"} <= set(commands)
    for command in commands:
        done = inside(root, f"/{KOORDEBPF}", command, "--help")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"Usage: koordebpf {command}")


def test_it_decides_there(root: Path) -> None:
    frame = Path(__file__).parents[1] / "scenarios/frames/hog-is-evicted.json"
    (root / "tmp/frame.json").write_bytes(frame.read_bytes())
    (root / "tmp/frame.json").chmod(0o644)  # whatever the umask: it is the image's user who reads it
    done = inside(root, f"/{KOORDEBPF}", "plan", "/tmp/frame.json")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("evicting spark/exec-2")


def test_with_a_compiler_it_compiles_the_programs_for_other_headers(tmp_path: Path, archive: Path) -> None:
    """Those of Debian's kernel, in the place where this kernel's would be: what is compiled is not attached."""
    root = unpack(obtain_image(say_line, "bcc"), tmp_path).root
    names = kernel_headers()
    shutil.copytree(unpacked(cache_folder() / names[0], names, say_line), root, symlinks=True, dirs_exist_ok=True)
    (modules,) = (root / "lib/modules").iterdir()
    modules.rename(modules.with_name(platform.release()))
    program = "from pathlib import Path; import koordebpf.kernel as kernel; from koordebpf.kernel.bcc.child import *; "
    program += "built = Built(import_bcc(), Path(kernel.__file__).parent / 'sources', []); "
    program += "print(sorted(built.layouts()), len(built.maps()[1]))"
    mounts = 'mount -t proc proc "$0/proc" && mount --rbind /sys "$0/sys" && exec chroot "$0" "$@"'
    command = ["unshare", "--mount", "sh", "-c", mounts, str(root), "/opt/koordebpf/bin/python", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "'koord_reclaim'" in done.stdout


def kernel_headers() -> list[str]:
    """Return Debian's packages with the headers of its newest kernel."""
    architecture = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout
    newest = needed_by(f"linux-headers-{architecture.strip()}")
    return [*newest, *needed_by(newest[0])]


def needed_by(package: str) -> list[str]:
    listing = subprocess.run(["apt-cache", "depends", package], capture_output=True, text=True, check=True).stdout
    return re.findall(r"Depends: (linux-(?:headers|kbuild)-\S+)", listing)
