"""Programs that are built from Go modules, kept in the cache by what they are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tests.cluster.binaries import Say, alone, cache_folder, digest_of, find_go, go_build

GO_FLAGS = ("-mod=readonly", "-trimpath", "-buildvcs=false", "-ldflags=-s -w")
_ROOT = Path(__file__).parents[2]


def kept_program(name: str, made_of: Sequence[bytes], build: Callable[[Path], None], say: Say) -> Path:
    """Return the program that `build` makes of these parts with GO_FLAGS; it is called where the cache has none.

    Raises:  CannotHave: it does not compile, or its modules cannot be downloaded.
    """
    home = cache_folder()
    home.mkdir(parents=True, exist_ok=True)
    out = home / f"{name}-{digest_of([*made_of, *(flag.encode() for flag in GO_FLAGS)])}"
    with alone(home / f"{name}.lock", say):
        if not out.exists():
            unfinished = out.with_suffix(".unfinished")
            build(unfinished)
            unfinished.rename(out)
    return out


def program_of(folder: Path, name: str, say: Say) -> Path:
    """Return the program of the one module in a folder of this project.

    Raises:  CannotHave: it does not compile, or its modules cannot be downloaded.
    """

    def build(out: Path) -> None:
        say(f"compiling {folder.relative_to(_ROOT)}, once")
        go_build(find_go(cache_folder(), say), [*GO_FLAGS, "-o", str(out), "."], folder, say)

    inputs = [folder / file for file in ("go.mod", "go.sum", "main.go")]
    return kept_program(name, [path.read_bytes() for path in inputs], build, say)
