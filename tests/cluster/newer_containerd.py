"""containerd 1.7 of Debian 13, unpacked into the cache: the one of Debian 12 has no NRI. Nothing is installed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.cluster.binaries import CannotHave, Say, alone, cache_folder, run, say_line
from tests.vm import kernels

_SUITES = ("trixie", "trixie-security")


def newer_containerd(say: Say) -> Path:
    """Return the folder of its programs.

    Raises:  CannotHave: Debian's archive cannot be reached.
    Cost:    32 MB, once.
    """
    home = cache_folder()
    home.mkdir(parents=True, exist_ok=True)
    root = home / "containerd-1.7"
    with alone(home / "containerd-1.7.lock", say):
        if not root.exists():
            say("downloading containerd 1.7 from Debian 13")
            unfinished = root.with_name(f"{root.name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            _download(unfinished)
            unfinished.rename(root)
    return root / "usr/bin"


# With lists and cache of its own: the machine's stay as they are.
def _download(folder: Path) -> None:
    for name in ("lists/partial", "archives/partial"):
        (folder / name).mkdir(parents=True)
    try:
        (folder / "sources.list").write_text(kernels.sources_list(_SUITES))
    except kernels.CannotHave as error:
        raise CannotHave(str(error)) from error
    options = [
        f"-oDir::Etc::sourcelist={folder}/sources.list",
        "-oDir::Etc::sourceparts=-",
        f"-oDir::State::lists={folder}/lists",
        f"-oDir::Cache={folder}",
        "-oAcquire::Languages=none",
        "-oAPT::Sandbox::User=root",
    ]
    run(["apt-get", "update", "-qq", *options])
    run(["apt-get", "download", "-qq", *options, "containerd"], folder)
    (package,) = folder.glob("containerd_*.deb")
    run(["dpkg-deb", "-x", str(package), str(folder)])
    package.unlink()
    for name in ("lists", "archives", "usr/share"):
        shutil.rmtree(folder / name, ignore_errors=True)


if __name__ == "__main__":
    try:
        say_line(str(newer_containerd(say_line)))
    except CannotHave as error:
        sys.exit(f"cluster: {error}")
