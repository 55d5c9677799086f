"""Kernels that Debian does not have, compiled once from its source with a configuration of ours, kept in the cache.

`python -m tests.vm.compiled` brings what is missing and says where it is.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

from tests.cluster.binaries import alone, digest_of, say_line, since
from tests.vm.kernels import SERIES, Apt, CannotHave, Kernel, Say, cache_folder, lock_of, obtain, run
from tests.vm.matrix import MATRIX

# Of the source: the code of devices that no virtual machine has, and of other processors. Kconfig reads all else.
_NOT_UNPACKED = (
    *("drivers/gpu/*.[ch]", "drivers/net/*/*.[ch]", "drivers/media/*.[ch]", "drivers/staging/*.[ch]", "sound/*.[ch]"),
    *("Documentation/devicetree", "tools/testing", "*.dts", "*.dtsi"),
)
_TARGET = "bzImage"
# What tells modprobe that a driver is in the kernel: no module is built.
_BUILT_IN = ("modules.builtin", "modules.builtin.modinfo")
_MINUTES = 11  # of CPU time
_RECIPE = (_TARGET, *_BUILT_IN)


def obtain_compiled(debian: Kernel, config: Path, say: Say) -> Kernel:
    """Return the kernel of the release of `debian` with another configuration, compiled if it is not in the cache.

    Args:
        debian: a kernel of `obtain`, whose apt state has the source.
        config: the options in which it differs from allnoconfig, one a line.
        say: called with each step.
    Raises:  CannotHave: and why.
    """
    series = SERIES[debian.series]
    source = f"linux-source-{series.name}"
    with alone(lock_of(series), say):
        apt = Apt(series, debian.apt, say)
        apt.update()
        version = apt.version(source)
    digest = digest_of([part.encode() for part in (version, config.read_text(), *_RECIPE)])
    home = cache_folder() / f"{series.name}-{config.stem}-{digest}"
    with alone(home.with_name(f"{home.name}.lock"), say):
        stamp = home / "release"
        if stamp.exists():
            kernel = Kernel(series.name, stamp.read_text().strip(), home)
            say(f"{series.name}: {kernel.release}, from the cache")
            return kernel
        unfinished = home.with_name(f"{home.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        with alone(lock_of(series), say):
            apt.unpack([source], unfinished)
        release = _compile(unfinished, source, config, say)
        (unfinished / "release").write_text(f"{release}\n")
        shutil.rmtree(home, ignore_errors=True)
        unfinished.rename(home)
        return Kernel(series.name, release, home)


def _compile(home: Path, source: str, config: Path, say: Say) -> str:
    # Leaves boot/ and lib/modules/ in `home`, which has the unpacked package, and nothing of the source.
    archive, tree = home / "usr/src" / f"{source}.tar.xz", home / source
    left_out = [f"--exclude={source}/{pattern}" for pattern in _NOT_UNPACKED]
    run(["tar", "-C", str(home), "-xf", str(archive), *left_out], f"{source}: tar")
    make = ["nice", "-n", "19", "make", "-C", str(tree), "-s", f"-j{len(os.sched_getaffinity(0))}"]
    run([*make, f"KCONFIG_ALLCONFIG={config}", "allnoconfig"], f"{source}: make allnoconfig")
    if refused := not_taken(config.read_text(), (tree / ".config").read_text()):
        raise CannotHave(f"{config}: {source} takes no {', '.join(refused)}")
    started_s = time.monotonic()
    say(f"compiling {source} with {config.name}, once: {_MINUTES} minutes of CPU time")
    run([*make, _TARGET], f"{source}: make {_TARGET}")
    release = _install(tree, home)
    shutil.rmtree(tree)
    shutil.rmtree(home / "usr")
    say(f"compiled {release} in {since(started_s)}")
    return release


def _install(tree: Path, home: Path) -> str:
    # As Debian's package has it: the kernel, and what is known of its modules.
    release = (tree / "include/config/kernel.release").read_text().strip()
    modules = home / "lib/modules" / release
    modules.mkdir(parents=True)
    for name in _BUILT_IN:
        shutil.copy(tree / name, modules)
    (modules / "modules.order").touch()
    (home / "boot").mkdir()
    shutil.copy(tree / "arch/x86/boot/bzImage", home / "boot" / f"vmlinuz-{release}")
    run(["/sbin/depmod", "-b", str(home), release], f"{release}: depmod")
    return release


def not_taken(asked: str, made: str) -> list[str]:
    """Return the lines of a configuration that kconfig dropped: it has no such option, or that lacks another one."""
    lines = [line for line in asked.splitlines() if line and not line.startswith("#")]
    return [line for line in lines if line not in made.splitlines()]


if __name__ == "__main__":
    folder = Path(__file__).parent
    try:
        for variant in MATRIX:
            if variant.config:
                debian = obtain(SERIES[variant.series], say_line)
                say_line(str(obtain_compiled(debian, folder / variant.config, say_line).root))
    except CannotHave as error:
        sys.exit(f"vm: {error}")
