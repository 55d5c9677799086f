"""What CPU burst remembers of containers and pods from one round to the next."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from koordebpf.policy.cpu_burst.limiter import Tokens


class Level(msgspec.Struct, frozen=True, gc=False):
    """The quota of one cgroup. Microseconds of a period.

    `own_us`    what it held before the burst and is to hold afterwards.
    `wanted_us` what it is to hold now; `own_us`: there is no burst.
    `before_us` what it was to hold in the round before.
    """

    own_us: int
    wanted_us: int
    before_us: int

    @property
    def is_raised(self) -> bool:
        """Whether it has more than its own."""
        return self.wanted_us > self.own_us

    @property
    def is_written(self) -> bool:
        """Whether its file is to be written: also once with its own, so that children are lowered before parents.

        And once with what another process wrote, which the writer takes for its original value then.
        """
        return self.is_raised or self.before_us != self.own_us

    def is_foreign(self, held_us: int | None) -> bool:
        """Tell whether a file that holds this was written by another process during the burst."""
        return self.is_raised and held_us not in (self.own_us, self.wanted_us, self.before_us)

    def left(self, held_us: int) -> Level:
        """Return the level of a cgroup whose file another process wrote: that is its own now."""
        return Level(held_us, held_us, self.wanted_us)

    def seen(self, held_us: int) -> Level:
        """Return the level that a round begins with, whose file holds this; after a burst that is its own again.

        A burst that has ended is written until the file holds less: the kernel may have refused it.
        """
        if self.is_raised:
            return Level(self.own_us, self.wanted_us, self.wanted_us)
        return self if self.is_written and held_us == self.before_us else level_of(held_us)


def level_of(held_us: int) -> Level:
    """Return the level of a cgroup without a burst."""
    return Level(held_us, held_us, held_us)


class ContainerBurst(msgspec.Struct, frozen=True, gc=False):
    """One container.

    `limit_us`      its limit by the pod's spec, for a period; another one ends its burst.
    `stepped_ns`    when its quota was changed last; `throttled_ns`: when it was throttled last. CLOCK_MONOTONIC.
    `left_until_ns` another process wrote its quota or its pod's: it is left to that until then.
    """

    level: Level
    period_us: int
    limit_us: int
    stepped_ns: int = 0
    throttled_ns: int = 0
    tokens: Tokens | None = None
    left_until_ns: int = 0


class BurstState(msgspec.Struct, frozen=True):
    """Containers and pods by the paths of their cgroups."""

    containers: Mapping[str, ContainerBurst] = {}
    pods: Mapping[str, Level] = {}
