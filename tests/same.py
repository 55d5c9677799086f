"""Whether this checkout answers as another commit does: `make same`, or `python -m tests.same [COMMIT]`.

Each of the two trees writes into a folder what it answers to the same: the help of all commands, its configuration
file and metrics page, the plan of each frame of tests, the replays of recordings, and of simulated lives the frames,
the audit lines and the journal after each step. The frames that the other tree recorded are decided by this one, too.
What differs is listed by its place in the JSON; what is meant to differ is in tests/same.txt, `FILE PLACE  # why`,
whose first line names the commit. Frames and plans are compared decoded, so that the order of keys is no difference.
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import io
import json
import logging
import os
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
MEANT = Path(__file__).with_name("same.txt")
HOME = ROOT / ".make" / "same"
LIVES = range(1, 9)  # seeds
_FRAMES = ("tests/scenarios/frames/*.json", "tests/golden/*/frames.jsonl")
_RECORDINGS = "tests/golden/what_if/*.rounds"
_PLACE = Path("/dev/shm/koordebpf-same")  # of a life: both trees have the same paths
_SHOWN = 40

Different = Counter[tuple[str, str]]  # by file and place


def frames() -> Iterator[tuple[str, str]]:
    """Yield each frame of tests, with its name."""
    for pattern in _FRAMES:
        for path in sorted(ROOT.glob(pattern)):
            if not path.name.endswith(".plan.json"):
                name = f"{path.parent.name}-{path.stem}"
                for number, line in enumerate(path.read_text().splitlines() if path.suffix == ".jsonl" else [None]):
                    document = json.loads(path.read_text() if line is None else line)
                    found = document if "tick" in document else document.get("frame", document)
                    yield f"{name}-{number:03}", json.dumps(found)


def answer(folder: Path) -> None:
    """Write what this tree answers."""
    folder.mkdir(parents=True)
    from koordebpf.cli import root
    from koordebpf.cli.man import man_pages

    _write(folder / "help", (f"{name}\n{text}" for name, text in man_pages(root())))
    _write(folder / "metrics", [(ROOT / "deploy/metrics.md").read_text()])
    _write(folder / "config", [_printed("config", "show")])
    given = folder.with_name(f"{folder.name}.json")
    plans = []
    for name, frame in frames():
        given.write_text(frame)
        plans.append(f'{{"frame": "{name}", "plan": {_printed("plan", "--json", str(given))}}}')
    _write(folder / "plans.jsonl", plans)
    _write(
        folder / "replays.jsonl", (_printed("replay", "--json", str(each)) for each in sorted(ROOT.glob(_RECORDINGS)))
    )
    for seed in LIVES:
        _live(seed, folder)
    decide_again(folder, folder)


def decide_again(recorded: Path, folder: Path) -> None:
    """Write the plans of frames that a tree recorded, as this one decides them."""
    for path in sorted(recorded.glob("life-*-frames.jsonl")):
        given = folder.with_name(f"{folder.name}.json")
        plans = []
        for line in path.read_text().splitlines():
            given.write_text(line)
            plans.append(_printed("plan", "--json", str(given)).strip())
        _write(folder / path.name.replace("frames", "again"), plans)


def _printed(*arguments: str) -> str:
    from click.testing import CliRunner

    from koordebpf.cli import root

    done = CliRunner().invoke(root(), arguments, terminal_width=100)
    return done.stdout if done.stdout else json.dumps({"exit": done.exit_code, "error": done.output})


# The lines of its files, as they are put: no thread writes them.
def _live(seed: int, folder: Path) -> None:
    from koordebpf.store.line_sink import LineSink
    from tests.support.simulated.life import Life

    # The ids of cgroups are inodes: those of a file system of its own begin alike.
    for place in (_PLACE, _PLACE / "cgroup"):
        place.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
    written: dict[str, list[bytes]] = {"audit": [], "frames": []}
    journals: list[str] = []

    def put(sink: Any, line: bytes) -> bool:
        written.setdefault(sink._name, []).append(line)
        return True

    try:
        with mock.patch.object(LineSink, "start", lambda _: None), mock.patch.object(LineSink, "put", put):
            life = Life(seed, _PLACE, audit=_PLACE / "audit", frames=_PLACE / "frames")
            with mock.patch.object(life, "_judge", _then(life._judge, lambda: journals.extend(_journals()))):
                life.run()
    finally:
        for place in (_PLACE / "cgroup", _PLACE):  # agents that were killed have files open
            subprocess.run(["umount", "--lazy", place], check=True)
    for name, lines in written.items():
        _write(folder / f"life-{seed}-{name}.jsonl", (line.decode().rstrip("\n") for line in lines))
    _write(folder / f"life-{seed}-lines", life.lines)
    _write(folder / f"life-{seed}-journals", journals)


def _then(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def both() -> None:
        first()
        second()

    return both


def _journals() -> Iterator[str]:
    for path in sorted((_PLACE / "run").rglob("*.journal")):
        yield from path.read_text(errors="replace").splitlines()
    yield ""


def _write(path: Path, texts: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(texts) + "\n")


def differences(before: Path, after: Path) -> Different:
    """Return what differs between two folders of answers, by file and place."""
    found: Different = Counter()
    names = {path.name for folder in (before, after) for path in folder.iterdir()}
    for name in sorted(names):
        if not ((before / name).exists() and (after / name).exists()):
            found[name, "the file"] += 1
            continue
        texts = [(folder / name).read_text() for folder in (before, after)]
        if not name.endswith(".jsonl"):
            lines = difflib.unified_diff(*(each.splitlines() for each in texts), lineterm="", n=0)
            found.update((name, line) for line in lines if not line.startswith(("---", "+++", "@@")))
            continue
        one, other = (list(_documents(each)) for each in texts)
        if len(one) != len(other):
            found[name, "documents"] += abs(len(one) - len(other))
        for line, another in zip(one, other, strict=False):
            if line != another:
                found.update((name, place) for place in _places(line, another))
    return found


# Plans are printed with indentation.
def _documents(text: str) -> Iterator[str]:
    decoder, start, end = json.JSONDecoder(), 0, len(text.rstrip())
    while start < end:
        _, stop = decoder.raw_decode(text, start)
        yield text[start:stop]
        start = stop + len(text[stop : stop + 80]) - len(text[stop : stop + 80].lstrip())


def _places(one: str, other: str) -> Iterator[str]:
    from koordebpf.decision.frames import upgraded_json
    from tests.support.version_1 import as_today, without_defaults

    yield from _unlike(
        *(without_defaults(as_today(json.loads(upgraded_json(each.encode())))) for each in (one, other)), ""
    )


def _unlike(one: Any, other: Any, place: str) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted(one.keys() | other.keys()):
            if key not in other or key not in one:
                yield f"{place}.{key} {'is new' if key in other else 'is gone'}"
            else:
                yield from _unlike(one[key], other[key], f"{place}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for each, another in zip(one, other, strict=True):
            yield from _unlike(each, another, f"{place}[]")
    elif one != other:
        yield place or "all of it"


def meant() -> tuple[str, list[tuple[str, str]]]:
    """Return the commit that this one is compared with, and what is meant to differ: patterns of file and place."""
    commit, *lines = [line for line in MEANT.read_text().splitlines() if line and not line.startswith("#")]
    pairs = [line.partition("  # ")[0].partition(" ") for line in lines]
    return commit.partition("  # ")[0], [(name, place) for name, _, place in pairs]


def main(arguments: list[str]) -> int:
    """Answer in both trees and compare; return 1 where something differs that is not meant to."""
    parser = argparse.ArgumentParser(prog="python -m tests.same", description=__doc__.splitlines()[0])
    parser.add_argument("commit", nargs="?", help="default: the one that tests/same.txt names")
    parser.add_argument("--answer", type=Path, help="only write what this tree answers into this folder")
    asked = parser.parse_args(arguments)
    logging.disable()
    if asked.answer:
        answer(asked.answer)
        return 0
    commit, exceptions = meant()
    shutil.rmtree(HOME, ignore_errors=True)
    tree = HOME / "tree"
    tree.mkdir(parents=True)
    packed = subprocess.run(["git", "archive", asked.commit or commit], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(tree, filter="data")
    running = [_answering(where, HOME / name) for where, name in ((tree, "before"), (ROOT, "after"))]
    codes = [each.wait() for each in running]
    if any(codes):
        return 1
    decide_again(HOME / "before", HOME / "after")
    found = differences(HOME / "before", HOME / "after")
    unlike = {
        key: count
        for key, count in found.items()
        if not any(fnmatch.fnmatchcase(key[0], name) and fnmatch.fnmatchcase(key[1], at) for name, at in exceptions)
    }
    for (name, place), count in sorted(unlike.items())[:_SHOWN]:
        print(f"{count:6} × {name}: {place[:300]}")
    print(f"{len(unlike)} differences, {len(found) - len(unlike)} that are meant: {HOME}/before and after")
    return int(bool(unlike))


def _answering(tree: Path, folder: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-m", "tests.same", "--answer", str(folder)]
    return subprocess.Popen(["unshare", "--mount", *command], cwd=tree, env=environment)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
