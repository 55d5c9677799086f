"""BlkIOReconcile as a strategy: limits of block devices for best-effort pods, and for pods that ask for their own."""

from __future__ import annotations

from koordebpf.policy.block_io.settings import BlockIOSettings
from koordebpf.policy.block_io.writes import BlockWrite, wanted
from koordebpf.policy.strategy import Decision, Empty, Strategy
from koordebpf.state.block_io.measured import BlockIOMeasured
from koordebpf.state.block_io.view import block_io_view
from koordebpf.state.view import NodeView


class BlockIODecision(Decision[Empty], frozen=True, kw_only=True):
    """The decision with what each write comes from, and sentences on what cannot be used."""

    sources: tuple[BlockWrite, ...] = ()
    problems: tuple[str, ...] = ()


class BlockIO(Strategy[BlockIOMeasured, Empty, BlockIOSettings]):
    """Koordlet's blkio strategy: asked each 10 s, and at once when a pod, the NodeSLO or a cgroup changes."""

    name = "blockIO"
    gate = "BlkIOReconcile"
    summary = "limit the block IO of best-effort pods, and of pods that ask"
    measured = BlockIOMeasured
    settings = BlockIOSettings
    state = Empty

    def decide(
        self, view: NodeView, measured: BlockIOMeasured | None, state: Empty, settings: BlockIOSettings
    ) -> BlockIODecision:
        """Return the limits of all directories.

        Skips:   not_due: what was written before stays.
        """
        if measured is None:
            return BlockIODecision(state=state, reason="block IO is not due", skipped="not_due")
        made = wanted(block_io_view(measured, view.facts), settings)
        writes = tuple(each.write for each in made.writes)
        paths = len({each.path for each in writes})
        return BlockIODecision(
            state=state,
            reason=f"block IO: {paths} cgroups have limits of {_devices(made.writes)} devices",
            writes=writes,
            sources=made.writes,
            problems=made.problems,
        )


def _devices(writes: tuple[BlockWrite, ...]) -> int:
    return len({device for each in writes for device, _ in getattr(each.write.value, "rows", ())})


BLOCK_IO = BlockIO()
