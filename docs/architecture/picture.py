"""Draw the package from its imports: `python docs/architecture/picture.py` writes picture.svg.

The rows are those of the contract of layers in pyproject.toml, the sentences are docstrings of the packages, and an
arrow is an import that no way through other packages shows.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Any, cast

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))
from tests.imports import graph, sources  # noqa: E402

HALLS = ("tools", "jobs", "strategies")
PICTURE = HERE / "picture.svg"

Imports = Mapping[str, frozenset[str]]  # package → the packages that it imports

Place = tuple[int, int, int, int]  # left, top, width, height, in pixels

_WIDTH = 960
_SPINE, _SPINE_WIDTH = 60, 450
_HALL, _HALL_WIDTH = 570, 370
_GAP, _TOP = 16, 64
_CHIP, _CHIP_GAP, _LETTER = 24, 6, 7.1
_STYLE = """
  .bg { fill: #ffffff; stroke: #d0d7de }
  text { font-family: system-ui, sans-serif; font-size: 13px; fill: #1f2328 }
  .title { font-size: 15px; font-weight: 600 } .name { font-weight: 600 } .small { font-size: 11.5px; fill: #59636e }
  .room { fill: #f6f8fa; stroke: #8c959f } .pure { fill: #ddf4ff; stroke: #54aeff }
  .hall { fill: #fff8c5; stroke: #d4a72c } .chip { fill: #ffffff; stroke: #d4a72c }
  .arrow { fill: none; stroke: #8c959f; stroke-width: 1.2 }
  .head { fill: #8c959f }
"""


def layers() -> tuple[tuple[str, ...], ...]:
    """Return the packages of each layer, the highest first."""
    names = ([_name(each) for each in row.split("|")] for row in _contract("type", "layers")["layers"])
    rows = (tuple(name for name in row if (ROOT / "koordebpf" / name).is_dir()) for row in names)
    return tuple(row for row in rows if row)


def pure() -> frozenset[str]:
    """Return the packages, and modules of others, that import no clock, file, socket, thread or log."""
    return frozenset(map(_name, _contract("name", "What decides is pure")["source_modules"]))


def imports() -> Imports:
    """Return which package imports which, but for the two lists that name what is in a hall above them."""
    found: dict[str, set[str]] = {}
    for path, reached in graph(sources()).items():
        for other in reached:
            above, below = _package(path), _package(other)
            if above and below and above != below and not other.endswith("__init__.py"):
                found.setdefault(above, set()).add(below)
    floors = {name: floor for floor, row in enumerate(layers()) for name in row}
    return {name: frozenset(each for each in below if floors[each] > floors[name]) for name, below in found.items()}


def shortest(imported: Imports) -> Iterator[tuple[str, str]]:
    """Yield the imports that no way through other packages shows."""
    for name, below in sorted(imported.items()):
        for each in sorted(below):
            if not any(each in _reached(imported, other) for other in below - {each}):
                yield name, each


def draw() -> str:
    """Return the picture."""
    places, bottom = _places()
    is_pure = pure()
    parts = [_arrow(places[above], places[below]) for above, below in shortest(imports())]
    for name, place in places.items():
        parts += _room(name, place, "hall" if name in HALLS else "pure" if name in is_pure else "room")
        parts += _chips(name, place) if name in HALLS else ()
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom}" width="{_WIDTH}" role="img" '
        'aria-label="The packages of koordebpf: a pipe from kernel to cli, and three halls">'
        f"<style>{_STYLE}</style><defs><marker id='head' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' "
        "markerHeight='7' orient='auto'><path class='head' d='M0 0 L8 4 L0 8 z'/></marker></defs>"
        f'<rect class="bg" x="0.5" y="0.5" width="{_WIDTH - 1}" height="{bottom - 1}" rx="6"/>'
        f'<text class="title" x="{_SPINE}" y="28">The pipe knows no feature</text>'
        f'<text class="small" x="{_SPINE}" y="46">Imports go down. Blue is pure: no clock, file or thread.</text>'
        f'<text class="title" x="{_HALL}" y="28">Three halls: a folder for each feature</text>'
        f'<text class="small" x="{_HALL}" y="46">None imports another one of its hall.</text>'
    )
    return "\n".join([head, *parts, "</svg>\n"])


# Where each package is, and the height of the picture. The pipe is the left column, the halls are the right one.
def _places() -> tuple[dict[str, Place], int]:
    places: dict[str, Place] = {}
    top = _TOP
    for row in layers():
        pipe = [name for name in reversed(row) if name not in HALLS]  # the agent next to its halls
        for number, name in enumerate(pipe):
            width = (_SPINE_WIDTH - _GAP * (len(pipe) - 1)) // len(pipe)
            places[name] = (_SPINE + number * (width + _GAP), top, width, _height(len(pipe)))
        top += _height(len(pipe)) + _GAP if pipe else 0
    hall_top = _TOP + _height(1) + _GAP
    for name in HALLS:
        height = 50 + len(_lines(_features(name))) * (_CHIP + _CHIP_GAP)
        places[name] = (_HALL, hall_top, _HALL_WIDTH, height)
        hall_top += height + 3 * _GAP
    return places, max(top, hall_top) + _GAP


# Packages that share a row have two lines for their sentences.
def _height(packages: int) -> int:
    return 46 if packages == 1 else 62


def _contract(key: str, value: str) -> dict[str, Any]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (found,) = (each for each in contracts if each[key] == value)
    return cast("dict[str, Any]", found)


def _name(module: str) -> str:
    return module.strip().removeprefix("koordebpf.")


def _package(path: str) -> str | None:
    parts = path.split("/")
    return parts[1] if parts[0] == "koordebpf" and len(parts) > 2 else None


def _reached(imported: Imports, name: str) -> frozenset[str]:
    below = imported.get(name, frozenset())
    return below.union(*(_reached(imported, each) for each in below))


# The first sentence of a package's docstring.
def _sentence(name: str) -> str:
    text = ast.get_docstring(ast.parse((ROOT / "koordebpf" / name / "__init__.py").read_text())) or ""
    return re.split(r"(?<=\.)\s", text.replace("\n", " ").replace("`", ""), maxsplit=1)[0].rstrip(".")


def _features(hall: str) -> list[str]:
    folder = ROOT / "koordebpf" / hall
    names = (each.name if each.is_dir() else each.stem for each in folder.iterdir() if each.name[0] not in "_.")
    return sorted(name.replace("_", " ") for name in names)


# The chips of a hall, in lines of its width.
def _lines(names: Iterable[str]) -> list[list[tuple[str, int, int]]]:
    lines: list[list[tuple[str, int, int]]] = [[]]
    x = 12
    for name in names:
        width = round(len(name) * _LETTER) + 14
        if x + width > _HALL_WIDTH - 12:
            lines.append([])
            x = 12
        lines[-1].append((name, x, width))
        x += width + _CHIP_GAP
    return lines


def _words(name: str, place: Place) -> Iterator[str]:
    x, y, width, height = place
    rows = 1 if name in HALLS or height == _height(1) else 2
    for number, line in enumerate(wrap(_sentence(name), int((width - 20) / 6), max_lines=rows, placeholder=" …")):
        yield f'<text class="small" x="{x + 12}" y="{y + 36 + 15 * number}">{escape(line)}</text>'


def _room(name: str, place: Place, kind: str) -> Iterator[str]:
    x, y, width, height = place
    yield f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="5"/>'
    yield f'<text class="name" x="{x + 12}" y="{y + 19}">{name}</text>'
    yield from _words(name, place)


def _chips(name: str, place: Place) -> Iterator[str]:
    for number, line in enumerate(_lines(_features(name))):
        top = place[1] + 46 + number * (_CHIP + _CHIP_GAP)
        for text, left, wide in line:
            x = place[0] + left
            yield f'<rect class="chip" x="{x}" y="{top}" width="{wide}" height="{_CHIP}" rx="12"/>'
            yield f'<text class="small" x="{x + wide / 2}" y="{top + 16}" text-anchor="middle">{text}</text>'


# Straight down where the next row begins; else along that side of the pipe where both ends are free.
def _arrow(above: Place, below: Place) -> str:
    x1, y1, width1, height1 = above
    x2, y2, width2, height2 = below
    out1, in2 = y1 + height1 / 2, y2 + height2 / 2
    x = (max(x1, x2) + min(x1 + width1, x2 + width2)) / 2
    far = (y2 - y1) / 30
    if x1 == _HALL and x2 == _HALL:
        path = f"M{x} {y1 + height1} V{y2}"
    elif x1 == _HALL:
        path = f"M{x1} {y1 + 60} C{x1 - 40} {y1 + 60} {x1 - 40} {in2} {x2 + width2} {in2}"
    elif x2 == _HALL:
        path = f"M{x1 + width1} {out1} C{x2 - 20} {out1} {x2 - 40} {y2 + 20} {x2} {y2 + 20}"
    elif y2 - y1 == height1 + _GAP:
        path = f"M{x} {y1 + height1} V{y2}"
    elif x1 == _SPINE and x2 == _SPINE:
        path = f"M{x1} {out1 + 6} C{x1 - 16 - far} {out1} {x2 - 16 - far} {in2} {x2} {in2 - 6}"
    else:
        right1, right2 = x1 + width1, x2 + width2
        path = f"M{right1} {out1 + 6} C{right1 + 16 + far} {out1} {right2 + 16 + far} {in2} {right2} {in2 - 6}"
    return f'<path class="arrow" d="{path}" marker-end="url(#head)"/>'


if __name__ == "__main__":
    PICTURE.write_text(draw())
