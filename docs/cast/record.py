"""Record `koordebpf demo` on a terminal, and draw it: `python docs/cast/record.py record|draw`.

`record` (root) runs the demo on a pseudo-terminal and writes hog.cast, which asciinema plays (format v2). `draw` makes
hog.svg of that file and of nothing else: each line appears when it was printed.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import pty
import re
import struct
import sys
import termios
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
CAST = HERE / "hog.cast"
PICTURE = HERE / "hog.svg"
_WIDTH, _HEIGHT = 80, 48
_LINE, _CHAR, _LEFT, _TOP = 17, 8.43, 14, 40
_END_S = 2.0  # that the last picture stays
_SGR = re.compile(r"\x1b\[([0-9;]*)m")
_COLOURS = {"31": "red", "32": "green", "33": "yellow", "36": "cyan", "1": "bold", "2": "dim"}
_STYLE = """\
  .bg { fill: #ffffff; stroke: #d0d7de }
  text { font-family: ui-monospace, Menlo, Consolas, monospace; font-size: 14px; fill: #1f2328; white-space: pre }
  .bold { font-weight: 600 } .dim { fill: #59636e } .red { fill: #cf222e } .green { fill: #1a7f37 }
  .yellow { fill: #9a6700 } .cyan { fill: #0969da } .dot { fill: #d0d7de }
  .row { opacity: 0; animation: show 1ms linear forwards }
  @keyframes show { to { opacity: 1 } }
  @media (prefers-reduced-motion: reduce) { .row { animation: none; opacity: 1 } }
  @media (prefers-color-scheme: dark) {
    .bg { fill: #0d1117; stroke: #3d444d } text { fill: #f0f6fc } .dim { fill: #9198a1 } .red { fill: #ff7b72 }
    .green { fill: #3fb950 } .yellow { fill: #d29922 } .cyan { fill: #79c0ff } .dot { fill: #3d444d }
  }"""


def record() -> None:
    """Run the demo and write hog.cast.

    Raises:  SystemExit: the demo did not go as it should.
    """
    began_s = time.monotonic()
    child, terminal = pty.fork()
    if child == 0:
        environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": str(_WIDTH), "LINES": str(_HEIGHT)}
        environment.pop("NO_COLOR", None)
        os.execve(sys.executable, [sys.executable, "-m", "koordebpf", "demo"], environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", _HEIGHT, _WIDTH, 0, 0))
    events = list(_output(terminal, began_s))
    _, status = os.waitpid(child, 0)
    if code := os.waitstatus_to_exitcode(status):
        sys.exit(f"koordebpf demo ended with {code}")
    head = {
        "version": 2,
        "width": _WIDTH,
        "height": _HEIGHT,
        "title": f"koordebpf demo, Linux {'.'.join(platform.release().split('.')[:2])}",
        "env": {"TERM": "xterm-256color"},
    }
    lines = [json.dumps(each, ensure_ascii=False) for each in (head, *events)]
    CAST.write_text("\n".join(lines) + "\n")


def draw() -> None:
    """Write hog.svg from hog.cast."""
    PICTURE.write_text(picture(CAST.read_text()))


def picture(cast: str) -> str:
    """Return the animated picture of a recording."""
    head, *events = map(json.loads, cast.splitlines())
    rows = list(_rows(events))
    width = round(_LEFT * 2 + _WIDTH * _CHAR)
    height = _TOP + len(rows) * _LINE + 14
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'role="img">',
        f"<title>{escape(head['title'])}</title>",
        f"<style>\n{_STYLE}\n</style>",
        f'<rect class="bg" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
        *(f'<circle class="dot" cx="{18 + 16 * each}" cy="16" r="5"/>' for each in range(3)),
    ]
    for number, (at_s, line) in enumerate(rows):
        if spans := "".join(_spans(line)):
            y = _TOP + number * _LINE
            parts.append(
                f'<text class="row" style="animation-delay: {at_s:.2f}s" x="{_LEFT}" y="{y}" xml:space="preserve">'
                f"{spans}</text>"
            )
    return "\n".join([*parts, "</svg>", ""])


def _output(terminal: int, began_s: float) -> Iterator[tuple[float, str, str]]:
    rest = b""
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # EIO: the child has closed it
            chunk = b""
        if not chunk:
            return
        # A character may be cut by the end of a read.
        text = (rest + chunk).decode(errors="ignore")
        rest = (rest + chunk)[len(text.encode()) :]
        yield round(time.monotonic() - began_s, 3), "o", text


def _rows(events: list[tuple[float, str, str]]) -> Iterator[tuple[float, str]]:
    line, since_s = "", 0.0
    for at_s, _, text in events:
        *whole, last = text.split("\n")
        for each in whole:
            yield (since_s if line else at_s), (line + each).rstrip("\r")
            line = ""
        if last and not line:
            since_s = at_s
        line += last
    if line.strip():
        yield since_s, line


def _spans(line: str) -> Iterator[str]:
    on: list[str] = []
    at = column = 0
    for found in [*_SGR.finditer(line), None]:
        text = line[at : found.start() if found else len(line)]
        if text:
            # Each span has its own place: what a viewer's font makes of spaces does not move the next.
            kind = f' class="{" ".join(on)}"' if on else ""
            yield f'<tspan x="{_LEFT + column * _CHAR:.1f}"{kind}>{escape(text, quote=False)}</tspan>'
            column += len(text)
        if found:
            at = found.end()
            on = (
                []
                if found[1] in ("", "0")
                else [*on, *(_COLOURS[each] for each in found[1].split(";") if each in _COLOURS)]
            )


if __name__ == "__main__":
    {"record": record, "draw": draw}[sys.argv[1]]()
