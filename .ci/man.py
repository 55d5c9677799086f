"""Write the manual pages of all commands into a folder: python .ci/man.py build/man."""

from __future__ import annotations

import sys
from pathlib import Path

from koordebpf.cli import root
from koordebpf.cli.man import man_pages


def main(folder: str) -> None:
    """Write them."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    for name, text in man_pages(root()):
        (path / name).write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
