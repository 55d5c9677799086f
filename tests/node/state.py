"""A node saved while it runs: the guest's memory, disk and devices, and beside them its control plane's keys and data.

It is made once for an image, QEMU and this code, by a boot; restoring it takes a second, any number of times.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import time
from pathlib import Path

import msgspec

from tests.cluster.binaries import Binaries, alone, digest_of, run
from tests.cluster.control_plane import ControlPlane, Kept
from tests.cluster.objects import BASE, BOOTSTRAP, install
from tests.cluster.processes import wait_for
from tests.node.crio import in_place_of_containerd
from tests.node.guest import SAVED, Guest, Machine
from tests.node.image import Image, pack, unpack
from tests.node.joining import join, pods_run
from tests.node.pods import warm_pods
from tests.vm.kernels import Say

API_PORT = 6443  # of loopback in a network of its own
CONTROLLERS = "*"
PLANE = "plane"
_PLANE_TAR = "plane.tar"
_READY_S = 420
_PODS_S = 300


class Saved(msgspec.Struct, frozen=True):
    """A saved node, unpacked."""

    image: Image
    kubernetes: Path
    folder: Path


def obtain(image: Image, binaries: Binaries, machine: Machine, work: Path, say: Say) -> Saved:
    """Return the saved node, unpacked in `work`; boot and save one first where the cache has none.

    Cost:    3 s; 2 minutes where it has to be booted.
    """
    home = image.folder / f"saved-{_key(machine)}"
    image.unpack(work)
    saved = Saved(image, binaries.kubernetes, work)
    with alone(image.folder / "saved.lock", say):
        if home.exists():
            for packed in home.glob("*.zst"):
                unpack(packed, work / packed.stem)
            run(["tar", "-xf", str(work / _PLANE_TAR), "-C", str(work)])
            return saved
        for older in image.folder.glob("saved-*"):
            shutil.rmtree(older)
        _make(saved, machine, say)
        unfinished = image.folder / "unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir()
        run(["tar", "-cSf", str(work / _PLANE_TAR), "-C", str(work), PLANE])
        for name in (*SAVED, _PLANE_TAR):
            pack(work / name, unfinished / f"{name}.zst")
        unfinished.rename(home)
        megabytes = sum(path.stat().st_size for path in home.iterdir()) / 1e6
        say(f"{image.suite.name}: saved, {megabytes:.0f} MB: {home}")
    return saved


# A saved machine is of one QEMU and its very arguments.
def _key(machine: Machine) -> str:
    version = subprocess.run(["qemu-system-x86_64", "--version"], capture_output=True, check=True).stdout
    here = [Path(__file__).with_name(f"{name}.py") for name in ("state", "guest", "joining", "pods")]
    sources = [*here, *sorted(BASE.glob("*.yaml")), *sorted(BOOTSTRAP.glob("*.yaml"))]
    return digest_of([version, msgspec.json.encode(machine), *(path.read_bytes() for path in sources)])


def _make(saved: Saved, machine: Machine, say: Say) -> None:
    plane, guest = power_on(saved.image, saved.kubernetes, saved.folder, machine, say)
    try:
        guest.save()
    finally:
        guest.close()
        plane.close()


def power_on(image: Image, kubernetes: Path, folder: Path, machine: Machine, say: Say) -> tuple[ControlPlane, Guest]:
    """Boot a guest from the disk that was unpacked in `folder`, and let it join a control plane; its pods run then.

    Raises:  TimeoutError: the node is not Ready, or its pods do not run.
    """
    started_s = time.monotonic()

    def reached(what: str) -> None:
        say(f"{image.suite.name}: {what} after {time.monotonic() - started_s:.0f} s")

    with contextlib.ExitStack() as until_running:
        (folder / PLANE).mkdir()
        plane = ControlPlane(kubernetes, CONTROLLERS, kept=Kept(folder / PLANE, API_PORT))
        until_running.callback(plane.close)
        install(plane.api)
        say(f"{image.suite.name}: booting {image.kernel.release}, emulated")
        guest = Guest.power_on(image.kernel, image.initrd, folder / image.packed_disk.stem, folder, machine)
        until_running.callback(guest.close)
        reached("up")
        with in_place_of_containerd(guest, say) if machine.runtime == "crio" else contextlib.nullcontext():
            join(guest, plane, image.suite.name, _READY_S)
            reached("node Ready")
            plane.api.create(*warm_pods(image.suite.name))
            wait_for(lambda: pods_run(plane), "the pods do not run", (), _PODS_S)
            reached("pods run")
        until_running.pop_all()
    return plane, guest
