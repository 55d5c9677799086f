"""The runtime's side of NRI by containerd's own library, built from Go modules and kept by what it is made of.

containerd/nri is v0.11.0, of containerd 2.2 and as Koordinator uses it.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.cluster.binaries import CannotHave, Say, say_line
from tests.cluster.go_programs import program_of


def nri_program(say: Say) -> Path:
    """Return the program, compiled first where it is not in the cache: half a minute with two CPUs.

    Raises:  CannotHave: it does not compile, or its modules cannot be downloaded.
    """
    return program_of(Path(__file__).with_name("nri"), "nri-adaptation", say)


if __name__ == "__main__":
    try:
        say_line(str(nri_program(say_line)))
    except CannotHave as error:
        sys.exit(f"cluster: {error}")
