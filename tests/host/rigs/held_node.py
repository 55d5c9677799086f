"""A node with a best-effort pod that uses all CPU it gets."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.host.rigs.live_node import BURN, LiveNode


class HeldNode(LiveNode):
    """A node with a best-effort pod that uses all CPU it gets, and one that is not best-effort."""

    def fill(self) -> None:
        (self.container,) = self.add_pod("be")
        self.add_pod("ls", be=False)
        self.process = self.start(self.container, *BURN)

    def arguments(
        self, folder: Path, policy: str = "cfsQuota", more: Iterable[dict[str, Any]] = ()
    ) -> tuple[object, ...]:
        """Return what the agent needs to hold it by a policy, in a dry run; `more` are objects beside its pods."""
        strategy = {"cpuSuppressThresholdPercent": 65, "cpuSuppressPolicy": policy}
        return self.agent_arguments(self.write_manifest(folder, more, resourceUsedThresholdWithBE=strategy))
