"""The initrd of a guest: busybox, and the modules between power-on and the root on a virtio disk."""

from __future__ import annotations

import gzip
import lzma
import subprocess
import tempfile
from pathlib import Path

from tests.cluster.binaries import CannotHave, run
from tests.vm.kernels import Kernel

# Modules of Debian's kernel, not part of it.
_MODULES = ("virtio_pci", "virtio_blk", "ext4", "crc32c_generic")
_INIT = """\
#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t devtmpfs dev /dev
{insmods}
tries=0
while [ ! -b /dev/vda ] && [ $tries -lt 600 ]; do
    $b sleep 0.05
    tries=$((tries + 1))
done
$b mount -t ext4 -o rw,noatime /dev/vda /root || exec $b sh
$b umount /proc
$b mount -o move /dev /root/dev
exec $b switch_root /root /usr/lib/systemd/systemd
"""


def write_initrd(kernel: Kernel, root: Path, out: Path) -> None:
    """Write an initrd for the kernel whose modules are in `root`.

    Raises:  CannotHave: a module or busybox is missing.
    """
    with tempfile.TemporaryDirectory(prefix="koordebpf-initrd-") as name:
        tree = Path(name)
        for folder in ("bin", "dev", "proc", "root", "modules"):
            (tree / folder).mkdir()
        busybox = tree / "bin/busybox"
        busybox.write_bytes((root / "usr/bin/busybox").read_bytes())
        insmods = []
        for module in _needed(kernel, root):
            plain = tree / "modules" / module.name.removesuffix(".xz")
            data = module.read_bytes()
            plain.write_bytes(lzma.decompress(data) if module.suffix == ".xz" else data)
            insmods.append(f"$b insmod /modules/{plain.name}")
        init = tree / "init"
        init.write_text(_INIT.format(insmods="\n".join(insmods)))
        for path in (busybox, init):
            path.chmod(0o755)
        names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
        command = ["busybox", "cpio", "-o", "-H", "newc"]
        archive = subprocess.run(command, cwd=tree, input=names.encode(), capture_output=True, check=True).stdout
        out.write_bytes(gzip.compress(archive, 1))


# In the order in which they have to be loaded.
def _needed(kernel: Kernel, root: Path) -> list[Path]:
    found: list[Path] = []
    for module in _MODULES:
        command = ["modprobe", "--show-depends", "-d", str(root), "-S", kernel.release, module]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        for line in done.stdout.splitlines():
            action, _, path = line.partition(" ")
            if action == "insmod" and Path(path.strip()) not in found:
                found.append(Path(path.strip()))
    if not any(path.name.startswith("virtio_blk.") for path in found):
        run(["modprobe", "--show-depends", "-d", str(root), "-S", kernel.release, "virtio_blk"])
        raise CannotHave(f"{kernel.release} has no module virtio_blk")
    return found
