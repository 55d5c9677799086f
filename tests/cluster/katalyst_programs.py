"""Programs of Katalyst's own code, built from Go modules and kept by what they are made of.

katalyst-core and katalyst-api are v0.5.0: the newest that the checksum database knows, without which Go does not build.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from tests.cluster.binaries import CannotHave, Say, say_line
from tests.cluster.go_programs import program_of

_ROOT = Path(__file__).parents[2]
Name = Literal["manager", "example"]
FOLDERS: dict[Name, Path] = {
    # The kubelet's plugin manager and katalyst-core's endpoint, which call a plugin as a Katalyst agent does.
    "manager": _ROOT / "tests/cluster/katalyst",
    # The example of a plugin, on katalyst-api's skeleton.
    "example": _ROOT / "deploy/examples/plugins/go",
}


def katalyst_program(name: Name, say: Say) -> Path:
    """Return the program, compiled first where it is not in the cache: half a minute to a minute with two CPUs.

    Raises:  CannotHave: it does not compile, or its modules cannot be downloaded.
    """
    return program_of(FOLDERS[name], f"katalyst-{name}", say)


if __name__ == "__main__":
    try:
        for name in FOLDERS:
            say_line(str(katalyst_program(name, say_line)))
    except CannotHave as error:
        sys.exit(f"cluster: {error}")
