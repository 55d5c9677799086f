"""Random lives of a node in virtual time: `python -m tests.simulate --seconds 3600`.

The seed is printed; `--seed SEED` begins there, and `--seed SEED --lives 1` lives that one again and prints it.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.support.simulated.life import Life

_MEMORY = Path("/dev/shm")
_perf_s = time.perf_counter


def lived(seed: int) -> tuple[Life, str | None]:
    """Live one life; return it, and what did not hold in it."""
    with tempfile.TemporaryDirectory(prefix="koordebpf-life-", dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        life = Life(seed, Path(folder))
        try:
            life.run()
        except Exception:
            return life, traceback.format_exc()
    return life, None


def simulate(seed: int, seconds: float, lives: int | None = None) -> tuple[str | None, str]:
    """Live lives from this seed on; return what did not hold in the last one, and in words what was lived."""
    end_s, count, ticks, rounds = _perf_s() + seconds, 0, 0, 0
    began_s, evicted, problem = _perf_s(), 0, None
    while problem is None and _perf_s() < end_s and (lives is None or count < lives):
        life, problem = lived(seed + count)
        count += 1
        ticks, rounds, evicted = ticks + life.node.ticks, rounds + life.node.rounds, evicted + len(life.node.gone)
        if problem is not None or lives == 1:
            again = f"python -m tests.simulate --seed {seed + count - 1} --lives 1"
            problem = problem and "\n".join([*life.lines, problem, f"once more: {again}"])
    took_s = _perf_s() - began_s
    words = f"{count} lives from seed {seed}, {ticks} ticks ({ticks / took_s:.0f} a second), {rounds} rounds"
    return problem, f"{words}, {evicted} evictions, {took_s:.1f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--lives", type=int, default=None, help="no more than these")
    parser.add_argument("--verbose", action="store_true", help="with the agents' log")
    given = parser.parse_args()
    if given.verbose:
        logging.basicConfig(level=logging.INFO)
    else:
        logging.disable()
    seed = random.SystemRandom().randrange(1 << 31) if given.seed is None else given.seed
    problem, words = simulate(seed, given.seconds, given.lives)
    if problem:
        print(problem)
    print(words)
    return problem is not None


if __name__ == "__main__":
    sys.exit(main())
