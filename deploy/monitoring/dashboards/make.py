"""Writes fleet.json and node.json beside itself, or into FOLDER: python3 …/dashboards/make.py [FOLDER]."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from fleet import fleet
from node import node

if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    for name, made in (("fleet", fleet()), ("node", node())):
        (folder / f"{name}.json").write_text(json.dumps(made, indent=2, ensure_ascii=False) + "\n")
