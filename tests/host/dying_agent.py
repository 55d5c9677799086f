"""`koordebpf run` that is killed with SIGKILL at one moment of its first eviction.

`before` or `after` the act; `frozen` or `signalled`: in the middle of it, its victim frozen and without or with the
signals.

python -m tests.host.dying_agent MOMENT ARGUMENT…, the arguments being those of `koordebpf run`.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, NoReturn

from koordebpf.act.evict.cgroup import CgroupExecutor
from koordebpf.agent import run
from koordebpf.cli import main
from koordebpf.kernel.cgroup.kill import Kill
from koordebpf.policy.plan import Victim
from koordebpf.state.outcome import Outcome


def die(*_: Any, **__: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


class Dying(CgroupExecutor):
    """The real executor, in a process that ends here."""

    def _act(self, victim: Victim, decided_ns: int) -> Outcome:
        if sys.argv[1] == "after":
            super()._act(victim, decided_ns)
        die()


if __name__ == "__main__":
    match sys.argv[1]:
        case "frozen":
            Kill._signal = die  # type: ignore[method-assign]
        case "signalled":
            Kill.finish = die  # type: ignore[method-assign]
        case _:
            run.CgroupExecutor = Dying  # type: ignore[misc]
    main(["run", *sys.argv[2:]])
