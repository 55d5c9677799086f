"""The scripts that make Vagrant's machines, in a copy of this machine's root: what they write, and only once.

Not node.sh: tests/node runs it twice in its image, and boots the node that it makes.
"""

from __future__ import annotations

import re
import shutil

import pytest

from tests.conftest import OTHER_MACHINE
from tests.host.overlay import ROOT, RootCopy, own_swap, root_copy

__all__ = ["own_swap", "root_copy"]
pytestmark = pytest.mark.usefixtures("require_root")

PROVISION = ROOT / "vagrant/provision"


def run_twice(root_copy: RootCopy, script: str, *arguments: str) -> str:
    """Run a script twice; the second time nothing may change. Return what it said the first time."""
    first = root_copy.run(PROVISION / script, *arguments)
    before = root_copy.changes()
    second = root_copy.run(PROVISION / script, *arguments)
    assert "changed" not in second
    assert root_copy.changes() == before
    return first


def test_options_of_the_kernel_are_for_the_next_boot(root_copy: RootCopy) -> None:
    path = "/etc/default/grub.d/50-koordebpf-options.cfg"
    assert f"changed: {path}\n" in run_twice(root_copy, "kernel.sh", "psi=1", "numa=fake=2")
    grub = ["sh", "-c", f'GRUB_CMDLINE_LINUX=own; . {path}; echo "$GRUB_CMDLINE_LINUX"']
    assert root_copy.run(*grub) == "own psi=1 numa=fake=2\n"

    root_copy.run(PROVISION / "kernel.sh", "psi=1")
    assert root_copy.run(*grub) == "own psi=1\n"


@pytest.fixture
def apt() -> None:
    if not shutil.which("apt-get"):
        pytest.skip(f"{OTHER_MACHINE}it has no apt-get")


@pytest.mark.slow
@pytest.mark.usefixtures("apt")
def test_packages_are_installed_once(root_copy: RootCopy) -> None:
    run_twice(root_copy, "packages.sh")
    assert root_copy.run("curl", "--version").startswith("curl ")


@pytest.mark.slow
def test_koordebpf_is_a_service_that_evicts_no_pod(root_copy: RootCopy) -> None:
    run_twice(root_copy, "koordebpf.sh")
    assert root_copy.run("koordebpf", "config", "check", "/etc/koordebpf/config.yaml")
    unit = root_copy.read("/etc/systemd/system/koordebpf.service")
    assert "--config /etc/koordebpf/config.yaml --node-name %H $MODE\n" in unit
    assert root_copy.read("/etc/default/koordebpf").splitlines()[-1] == "MODE=--dry-run"

    # What a person chose there stays.
    root_copy.run("sed", "-i", "s/--dry-run/--enforce/", "/etc/default/koordebpf")
    root_copy.run(PROVISION / "koordebpf.sh")
    assert root_copy.read("/etc/default/koordebpf").splitlines()[-1] == "MODE=--enforce"


@pytest.mark.slow
@pytest.mark.usefixtures("apt")
def test_vagrant_takes_the_vagrantfile(root_copy: RootCopy) -> None:
    install = ("apt-get", "install", "-y", "-qq", "--no-install-recommends", "-o", "Dpkg::Options::=--force-unsafe-io")
    root_copy.run(*install, "vagrant", environment={"DEBIAN_FRONTEND": "noninteractive"})
    places = {"VAGRANT_CWD": str(ROOT / "vagrant"), "VAGRANT_HOME": "/var/vagrant"}
    said = root_copy.run("vagrant", "validate", "--ignore-provider", environment=places).splitlines()
    assert said[-1] == "Vagrantfile validated successfully."
    assert len(said) == 1 + len(re.findall(r'^  "', (ROOT / "vagrant/Vagrantfile").read_text(), re.MULTILINE))


def test_swap_in_a_file(root_copy: RootCopy, own_swap: str) -> None:
    assert "changed: swap is on, 64 MiB" in run_twice(root_copy, "swap.sh", "64", own_swap)
    assert root_copy.swaps() == [own_swap]
    assert root_copy.read("/etc/fstab").splitlines()[-1] == f"{own_swap} none swap sw 0 0"
    assert "changed: swap is on, 96 MiB" in run_twice(root_copy, "swap.sh", "96", own_swap)


@pytest.mark.usefixtures("own_swap")
def test_swap_in_compressed_memory(root_copy: RootCopy) -> None:
    assert "changed: swap is on, 64 MiB in zram" in run_twice(root_copy, "zram.sh", "64")
    assert root_copy.swaps() == ["/dev/zram0"]
